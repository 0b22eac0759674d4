"""Questions about GStreamer: which elements the registry has, and what their properties are really called in this release.

Source: GObject and GStreamer API references (``GParamSpec``, ``g_object_class_list_properties``, ``gst_plugin_feature_get_plugin_name``).
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_uint, c_void_p
from typing import Any

from zc_perception.camera.gstreamer.abi import GStreamer, load_gstreamer
from zc_perception.camera.gstreamer.pipeline import check_description
from zc_perception.errors import ZcError

#: What the cameras, the samples of the ZED X → Metis document and pipelines made by hand use.
ELEMENTS = (
    'appsink', 'v4l2src', 'nvarguscamerasrc', 'nvv4l2camerasrc', 'nvvidconv', 'libcamerasrc', 'axinferencenet', 'axtransform',
)  # fmt: skip
#: Parts of the names of properties that decide whether pixels are copied, or which sensor it is.
_OF_INTEREST = ('dma', 'io-mode', 'import', 'memory', 'bufapi', 'sensor', 'model', 'camera-name')


class _ParamSpec(ctypes.Structure):
    """``GParamSpec`` up to its flags and types."""

    _fields_ = (('g_type_instance', c_void_p), ('name', c_char_p), ('flags', c_uint), ('value_type', ctypes.c_size_t))


def _functions() -> tuple[Any, Any, Any, Any]:
    """Listing properties, naming types, and where a factory comes from: what only the doctor needs."""
    gobject, gst = ctypes.CDLL('libgobject-2.0.so.0'), ctypes.CDLL('libgstreamer-1.0.so.0')
    listing = gobject.g_object_class_list_properties
    listing.restype, listing.argtypes = POINTER(POINTER(_ParamSpec)), [c_void_p, POINTER(c_uint)]
    type_name = gobject.g_type_name
    type_name.restype, type_name.argtypes = c_char_p, [ctypes.c_size_t]
    plugin_of = gst.gst_plugin_feature_get_plugin_name
    plugin_of.restype, plugin_of.argtypes = c_char_p, [c_void_p]
    free = ctypes.CDLL('libglib-2.0.so.0').g_free
    free.restype, free.argtypes = None, [c_void_p]
    return listing, type_name, plugin_of, free


def _properties(gst: GStreamer, name: str) -> dict[str, Any]:
    listing, type_name, plugin_of, free = _functions()
    factory = gst.gst_element_factory_find(name.encode())
    if not factory:
        return {'there': False}
    plugin = (plugin_of(factory) or b'').decode()
    gst.gst_object_unref(factory)
    made = gst.gst_element_factory_make(name.encode(), None)
    if not made:
        return {
            'there': True,
            'plugin': plugin,
            'error': 'the registry has it, but it could not be made: a library of its plugin is missing',
        }
    element = gst.gst_object_ref_sink(made)
    try:
        count = c_uint()
        table = listing(c_void_p.from_address(element).value, ctypes.byref(count))
        found = {(p := table[i].contents).name.decode(): (type_name(p.value_type) or b'').decode() for i in range(count.value)}
        free(ctypes.cast(table, c_void_p))
    finally:
        gst.gst_object_unref(element)
    return {'there': True, 'plugin': plugin, 'properties': {n: t for n, t in sorted(found.items()) if any(k in n for k in _OF_INTEREST)}}


def describe_gstreamer() -> dict[str, Any]:
    """Version, and each of :data:`ELEMENTS` with the properties that matter, or why there is no GStreamer."""
    try:
        gst = load_gstreamer()
    except ZcError as error:
        return {'error': str(error)}
    return {'version': '.'.join(map(str, gst.version)), 'elements': {name: _properties(gst, name) for name in ELEMENTS}}


def try_pipeline(description: str) -> dict[str, Any]:
    """Whether a pipeline can be made of *description*, as the gstreamer camera does. No device is opened."""
    try:
        check_description(description)
    except ZcError as error:
        return {'error': str(error)}
    return {}
