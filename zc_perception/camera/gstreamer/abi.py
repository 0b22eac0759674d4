# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
Call GStreamer's C interface with ctypes: the functions and public fields that this package uses.

Source: the headers of GStreamer 1.x, whose ABI doesn't change within the series.
``test/camera/test_gstreamer.py`` compares this file's sizes and offsets with those of a C
compiler.

PyGObject isn't used, because this package needs the C objects themselves. A buffer's reference has
to be dropped with the last lease, not when Python collects an object. Only the sole owner of a
query may answer it, but a Python object would be a second owner. The pointer in a mapped NVMM
buffer must be followed to a C struct. ctypes also works with any Python and any installed
GStreamer.
"""

from __future__ import annotations

from collections.abc import Callable
import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p, POINTER
from enum import IntEnum, IntFlag
import functools
from typing import Any

from zc_perception.c_structs import c_struct
from zc_perception.errors import ConfigError

INSTALL = (
    'install it: apt install libgstreamer1.0-0 libgstreamer-plugins-base1.0-0 '
    'gstreamer1.0-plugins-base gstreamer1.0-plugins-good'
)
CLOCK_TIME_NONE = (1 << 64) - 1
OFFSET_NONE = (1 << 64) - 1
FORMAT_TIME = 3
MAP_READ = 1
PARSE_FATAL_ERRORS = 1
PARSE_NO_SUCH_ELEMENT = 1
PROBE_QUERY_DOWNSTREAM = 1 << 9
PROBE_OK, PROBE_HANDLED = 1, 4
QUERY_ALLOCATION = 140 << 8 | 2 | 4
QUERY_CAPS = 170 << 8 | 1 | 2
CAPS_INTERSECT_FIRST = 1
BUFFER_CORRUPTED = 1 << 8
BUFFER_DELTA_UNIT = 1 << 13
MEMORY_READONLY = 1 << 1
MAX_PLANES = 4


class State(IntEnum):
    """The values of ``GstState``."""

    NULL = 1
    READY = 2
    PAUSED = 3
    PLAYING = 4


class StateChange(IntEnum):
    """The values of ``GstStateChangeReturn``."""

    FAILURE = 0
    SUCCESS = 1
    ASYNC = 2
    NO_PREROLL = 3


class MessageType(IntFlag):
    """The values of ``GstMessageType`` that this package uses."""

    EOS = 1 << 0
    ERROR = 1 << 1
    WARNING = 1 << 2
    LATENCY = 1 << 19


class ResourceError(IntEnum):
    """The values of ``GstResourceError`` that this package uses."""

    NOT_FOUND = 3
    BUSY = 4


# The structs below have GStreamer's names without ``Gst``. Some of them lack fields at the end
# that this package doesn't use.

# Buffers, samples, messages and queries begin with this struct.
MiniObject = c_struct(
    'size type; int refcount lockstate; uint flags; ptr copy dispose free; uint priv_uint; ptr '
    'priv_pointer'
)
# Elements and allocators begin with this struct.
Object = c_struct(
    'ptr g_class; uint ref_count; ptr qdata; u64 lock; ptr name parent; u32 flags; ptr '
    'control_bindings; u64 control_rate last_sync; ptr reserved'
)
Allocator = c_struct('head object; ptr mem_type mem_map', head=Object)
Buffer = c_struct(
    'head mini_object; ptr pool; u64 pts dts duration offset offset_end', head=MiniObject
)
Message = c_struct('head mini_object; uint type; u64 timestamp; ptr src', head=MiniObject)
Query = c_struct('head mini_object; uint type', head=MiniObject)
PadProbeInfo = c_struct('uint type; ulong id; ptr data')
Meta = c_struct('uint flags; ptr info')
# Plane offsets count from the beginning of the GstBuffer, as if its memories were joined.
VideoMeta = c_struct(
    (
        'meta meta; ptr buffer; uint flags; int format id; uint width height n_planes; size[4] '
        'offset; int[4] stride'
    ),
    meta=Meta,
)
VideoCropMeta = c_struct('meta meta; uint x y width height', meta=Meta)
VideoColorimetry = c_struct('int range matrix transfer primaries')
# The format that caps describe, with the strides and offsets that GStreamer uses by default.
VideoInfo = c_struct(
    'ptr finfo; int interlace_mode; uint flags; int width height; size size; int views '
    'chroma_site; colours colorimetry; '
    'int par_n par_d fps_n fps_d; size[4] offset; int[4] stride; ptr[4] reserved',
    colours=VideoColorimetry,
)
MapInfo = c_struct('ptr memory; int flags; ptr data; size size maxsize; ptr[4] user_data reserved')
Error = c_struct('u32 domain; int code; text message')

ProbeCallback = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(PadProbeInfo), c_void_p)
MapFunction = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_int)

# The names of C types in the prototypes below; ``name*`` is a pointer to ``name``. In a prototype
# the result comes first. A returned string that the caller must free is ``ptr``, because ctypes
# would copy a ``text`` and lose its address.
_TYPES: dict[str, Any] = {
    'void': None, 'ptr': c_void_p, 'int': c_int, 'uint': c_uint, 'ulong': ctypes.c_ulong,
    'u32': ctypes.c_uint32, 'u64': c_uint64, 'size': c_size_t, 'text': c_char_p,
    'probe': ProbeCallback, 'error': POINTER(Error), 'error*': POINTER(POINTER(Error)),
    'ptr*': POINTER(c_void_p), 'int*': POINTER(c_int), 'uint*': POINTER(c_uint),
    'size*': POINTER(c_size_t), 'map*': POINTER(MapInfo), 'info*': POINTER(VideoInfo),
}  # fmt: skip
_PROTOTYPES: dict[str, dict[str, str]] = {
    'libglib-2.0.so.0': {
        'void ptr': 'g_free g_async_queue_unref',
        'void error': 'g_error_free',
        'text u32': 'g_quark_to_string',
        'ptr': 'g_async_queue_new',
        'void ptr ptr': 'g_async_queue_push',
        'ptr ptr': 'g_async_queue_pop',
    },
    'libgobject-2.0.so.0': {'ptr ptr text': 'g_object_class_find_property'},
    'libgstreamer-1.0.so.0': {
        'int ptr ptr error*': 'gst_init_check',
        'void uint* uint* uint* uint*': 'gst_version',
        'ptr text ptr int error*': 'gst_parse_launch_full',
        'ptr text': 'gst_element_factory_find gst_caps_from_string',
        'ptr text text': 'gst_element_factory_make',
        'ptr ptr text': 'gst_bin_get_by_name gst_element_get_static_pad',
        'ptr ptr': 'gst_element_get_bus gst_object_get_name gst_object_ref_sink '
                   'gst_mini_object_ref gst_bus_pop gst_sample_get_buffer gst_sample_get_caps '
                   'gst_sample_get_segment gst_caps_to_string gst_caps_normalize',
        'int ptr': 'gst_bin_recalculate_latency gst_caps_is_empty gst_caps_is_any',
        'int ptr ptr': 'gst_caps_can_intersect gst_element_send_event',
        'void ptr u64': 'gst_element_set_start_time gst_element_set_base_time',
        'void ptr ptr ptr': 'gst_mini_object_weak_ref',
        'int ptr int': 'gst_element_set_state',
        'u64 ptr': 'gst_element_get_base_time gst_clock_get_time',
        'ptr ptr ptr': 'gst_pad_peer_query_caps',
        'ulong ptr uint probe ptr ptr': 'gst_pad_add_probe',
        'void ptr ptr': ('gst_pipeline_use_clock gst_query_set_caps_result '
                         'gst_buffer_append_memory'),
        'ptr': 'gst_system_clock_obtain gst_buffer_new',
        'void ptr text text': 'gst_util_set_object_arg',
        'void ptr': 'gst_object_unref gst_mini_object_unref',
        'void ptr error* ptr*': 'gst_message_parse_error gst_message_parse_warning',
        'u64 ptr int u64': 'gst_segment_to_running_time',
        'ptr ptr ptr int': 'gst_caps_intersect_full',
        'ptr ptr uint': 'gst_caps_get_structure gst_caps_get_features gst_buffer_peek_memory',
        'uint ptr': 'gst_caps_features_get_size gst_buffer_n_memory',
        'text ptr uint': 'gst_caps_features_get_nth',
        'text ptr': 'gst_structure_get_name',
        'text ptr text': 'gst_structure_get_string',
        'int ptr text int*': 'gst_structure_get_int',
        'int ptr text int* int*': 'gst_structure_get_fraction',
        'text uint': 'gst_query_type_get_name',
        'void ptr ptr*': 'gst_query_parse_caps',
        'void ptr ptr* int*': 'gst_query_parse_allocation',
        'void ptr ptr uint uint uint': 'gst_query_add_allocation_pool',
        'void ptr size ptr': 'gst_query_add_allocation_meta',
        'int ptr size size uint* uint* size*': 'gst_buffer_find_memory',
        'ptr ptr size': 'gst_buffer_get_meta',
        'int ptr map* int': 'gst_buffer_map gst_memory_map',
        'void ptr map*': 'gst_buffer_unmap gst_memory_unmap',
        'size ptr size* size*': 'gst_memory_get_sizes',
    },
    'libgstapp-1.0.so.0': {
        'ptr ptr u64': 'gst_app_sink_try_pull_sample gst_app_sink_try_pull_preroll',
        'int ptr': 'gst_app_sink_is_eos gst_app_src_end_of_stream',
        'ptr ptr': 'gst_app_sink_get_caps',
        'void ptr ptr': 'gst_app_sink_set_caps gst_app_src_set_caps',
        'int ptr ptr': 'gst_app_src_push_buffer',
    },
    'libgstallocators-1.0.so.0': {
        'int ptr': 'gst_is_dmabuf_memory gst_dmabuf_memory_get_fd',
        'ptr': 'gst_fd_allocator_new gst_dmabuf_allocator_new',
        'ptr ptr int size': 'gst_dmabuf_allocator_alloc',
        'ptr ptr int size uint': 'gst_fd_allocator_alloc',
    },
    'libgstvideo-1.0.so.0': {
        'int info* ptr': 'gst_video_info_from_caps',
        'size': 'gst_video_meta_api_get_type gst_video_crop_meta_api_get_type',
        'ptr ptr uint int uint uint uint size* int*': 'gst_buffer_add_video_meta_full',
        'ptr u64 int uint': 'gst_video_event_new_upstream_force_key_unit',
    },
}  # fmt: skip


class GStreamer:
    """
    GStreamer's loaded libraries; each C function is an attribute with the function's name.

    :raises ConfigError: a library or function is missing, or GStreamer can't be initialised.
    """

    def __init__(self) -> None:
        for library, functions in _PROTOTYPES.items():
            try:
                loaded = ctypes.CDLL(library)
                for prototype, names in functions.items():
                    result, *arguments = (_TYPES[word] for word in prototype.split())
                    for name in names.split():
                        function = getattr(loaded, name)
                        function.restype, function.argtypes = result, arguments
                        setattr(self, name, function)
            except (OSError, AttributeError) as error:
                raise ConfigError(
                    f'GStreamer 1.16 or newer is needed: {error}; {INSTALL}'
                ) from error
        failure = POINTER(Error)()
        if not self.gst_init_check(None, None, ctypes.byref(failure)):
            raise ConfigError(f'GStreamer could not be initialised: {self.take_error(failure)[0]}')
        numbers = [c_uint() for _ in range(4)]
        self.gst_version(*map(ctypes.byref, numbers))
        self.version = (numbers[0].value, numbers[1].value)
        if self.gst_query_type_get_name(QUERY_ALLOCATION) != b'allocation':
            raise ConfigError(
                f'GStreamer {self.version[0]}.{self.version[1]} has other query numbers than '
                'this package uses; install a 1.x release'
            )
        self.video_meta_type: int = self.gst_video_meta_api_get_type()
        self.crop_meta_type: int = self.gst_video_crop_meta_api_get_type()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f'{name} is no GStreamer function that this package loads')

    def take_text(self, address: int | None) -> str:
        """Return the string at *address*, and free its memory."""
        if not address:
            return ''
        try:
            return (ctypes.cast(address, c_char_p).value or b'').decode('utf-8', 'replace')
        finally:
            self.g_free(address)

    def take_error(self, error: ctypes._Pointer[Any]) -> tuple[str, str, int]:
        """Return message, domain and code of a GError, and free the GError."""
        if not error:
            return 'no reason was given', '', 0
        try:
            domain = self.g_quark_to_string(error[0].domain) or b''
            return (
                (error[0].message or b'').decode('utf-8', 'replace').strip(),
                domain.decode(),
                int(error[0].code),
            )
        finally:
            self.g_error_free(error)

    def has_property(self, element: int, name: str) -> bool:
        """Return whether an element has a property; its name may depend on GStreamer's version."""
        return bool(
            self.g_object_class_find_property(c_void_p.from_address(element).value, name.encode())
        )

    def set_property(self, element: int, name: str, value: object) -> None:
        """
        Set a property of an element from a text, as gst-launch does.

        If the element has no such property, GStreamer only warns.
        """
        text = str(value).lower() if isinstance(value, bool) else str(value)
        self.gst_util_set_object_arg(element, name.encode(), text.encode())

    def has_element(self, name: str) -> bool:
        factory = self.gst_element_factory_find(name.encode())
        if factory:
            self.gst_object_unref(factory)
        return bool(factory)


@functools.cache
def load_gstreamer() -> GStreamer:
    """Return this process's only :class:`GStreamer`; after a failure the next call tries again."""
    return GStreamer()
