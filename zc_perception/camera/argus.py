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
The Argus camera of a Jetson, which uses GStreamer's source element ``nvarguscamerasrc``.

The source gives buffers in NVMM, NVIDIA's memory for GStreamer. A mapped NVMM buffer doesn't
contain the pixels: it contains the struct ``NvBufSurface``. The struct's first entry gives the
image's file descriptor, its real pitch and offsets, and its colours (NV12 is limited range,
NV12_ER full range). The image's memory belongs to GStreamer's pool. So this camera holds the
GstBuffer while the frame is leased, because GStreamer would otherwise fill the memory with a new
frame.

Sensors' images often have a block-linear layout. Consumers that can use this layout get the images
without a copy. For other consumers the VIC (NVIDIA's video image compositor) copies each image
into linear memory of this package, and each copy is counted.

Source: NVIDIA's *Accelerated GStreamer* guide, NvBufSurface pages of the *Jetson Linux API
Reference*. Tested only with replacements for the libraries and for ``nvarguscamerasrc``, not on a
Jetson.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
import ctypes
from ctypes import byref
from dataclasses import replace
from fractions import Fraction
import re
from typing import Any, TYPE_CHECKING

from zc_perception.camera.camera import CameraOptions
from zc_perception.camera.gstreamer.abi import GStreamer, load_gstreamer, MAP_READ, MapInfo
from zc_perception.camera.gstreamer.camera import GStreamerCamera
from zc_perception.camera.gstreamer.image import (
    FrameMemory,
    FrameReader,
    offered_nvmm_caps,
    StreamFormat,
)
from zc_perception.camera.gstreamer.kind import ArgusKind, RESERVE
from zc_perception.camera.gstreamer.pipeline import Sample
from zc_perception.errors import (
    AcceleratorError,
    AllocationError,
    CameraChangedError,
    CameraError,
    ConfigError,
    FormatError,
    LayoutError,
    ZcError,
)
from zc_perception.machine.asking import Question
from zc_perception.machine.checks import fail, Finding, Need, Needs, ok, skip, warn
from zc_perception.machine.system import file_of
from zc_perception.memory.dmabuf import BufferIdentity, DmaBuf
from zc_perception.memory.pool import BorrowedMemory, BufferPool, Buffers, own_descriptors, Slot
from zc_perception.negotiation.constraints import BufferConstraints, Format, Placement
from zc_perception.negotiation.settings import AllocationRequest, BufferSettings
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import LINEAR

if TYPE_CHECKING:
    from zc_perception.jetson.vic import Vic
    from zc_perception.machine.system import System

SOURCE = 'nvarguscamerasrc'
HEAP = 'nvbufsurface'
# At most this number of the source's dma-bufs stay open as inputs of the VIC. The source's pool
# normally has fewer buffers, so all of them stay open.
_KEPT = 32
_INSTALL = (
    'it comes with JetPack (package nvidia-l4t-gstreamer), and a container needs it '
    'mounted or installed'
)


class NvmmFrames(FrameReader):
    """Finds the dma-buf and the layout of frames that are NvBufSurfaces."""

    def __init__(self, gst: GStreamer, what: StreamFormat, library: str | None = None) -> None:
        # Import nvbufsurface only now: it loads a library that only a Jetson has.
        from zc_perception.jetson.nvbufsurface import check_structs

        super().__init__(gst, what)
        try:
            check_structs(library)
        except AllocationError as error:
            raise CameraError(str(error)) from error

    def parameters(self, sample: Sample) -> ctypes.Structure:
        """
        Return the NvBufSurfaceParams of the sample's image, valid while the sample is held.

        :raises LayoutError: the sample's buffer can't be mapped, or contains no NvBufSurface.
        """
        from zc_perception.jetson.nvbufsurface import surface_parameters

        info = MapInfo()
        if not self._gst.gst_buffer_map(sample.buffer, byref(info), MAP_READ):
            raise LayoutError(
                'an NVMM buffer could not be mapped, so its NvBufSurface can not be read; '
                'see the log of the element that made the buffer'
            )
        try:
            return surface_parameters(info.data, info.size)
        finally:
            # The surface stays valid after the unmap: mapping only returns the surface's address.
            self._gst.gst_buffer_unmap(sample.buffer, byref(info))

    def memory(self, sample: Sample) -> FrameMemory:
        from zc_perception.jetson.nvbufsurface import surface_signature

        parameters = self.parameters(sample)
        part = BorrowedMemory(int(parameters.bufferDesc), 0, int(parameters.dataSize))
        return FrameMemory((part,), surface_signature(parameters))

    def layout(self, sample: Sample, memory: FrameMemory) -> tuple[ImageLayout, tuple[int, ...]]:
        """
        Return the frame's layout, and ``(0,)``.

        The tuple has the same meaning as in the base class: it lists for each buffer of the layout
        its index in ``memory.parts``. An NVMM frame has only one buffer, ``memory.parts[0]``.
        """
        from zc_perception.jetson.nvbufsurface import surface_image

        return surface_image(self.parameters(sample))[0], (0,)


def source_description(gst: GStreamer, parameters: Mapping[str, Any]) -> str:
    """
    Return the text of the pipeline that reads one sensor by ``nvarguscamerasrc``.

    The names of the element's properties differ between releases of Jetson Linux. The text has the
    names that the installed release uses.

    :raises ConfigError: the source element isn't installed, or it lacks a property.
    """
    wanted = {'sensor-id': parameters['sensor_id']}
    if parameters['sensor_mode'] >= 0:
        wanted['sensor-mode'] = parameters['sensor_mode']
    caps = ['video/x-raw(memory:NVMM)', 'format=(string)NV12']
    caps += [f'{name}=(int){parameters[name]}' for name in ('width', 'height') if parameters[name]]
    if parameters['framerate']:
        rate = Fraction(parameters['framerate']).limit_denominator(1001)
        caps.append(f'framerate=(fraction){rate.numerator}/{rate.denominator}')
    if not gst.has_element(SOURCE):
        raise ConfigError(f"camera 'argus' needs GStreamer's element {SOURCE}: {_INSTALL}")
    element = gst.gst_object_ref_sink(gst.gst_element_factory_make(SOURCE.encode(), None))
    try:
        words = [SOURCE]
        for name, value in wanted.items():
            found = next(
                (n for n in (name, name.replace('-', '_')) if gst.has_property(element, n)), None
            )
            if found is None:
                raise ConfigError(
                    f"this Jetson's {SOURCE} has no property '{name}'; see gst-inspect-1.0 "
                    f'{SOURCE}'
                )
            words.append(f'{found}={value}')
        # There are two kinds of NVMM buffers. Ask for the newer kind, which contains an
        # NvBufSurface.
        if gst.has_property(element, 'bufapi-version'):
            words.append('bufapi-version=true')
    finally:
        gst.gst_object_unref(element)
    return f'{" ".join(words)} ! {",".join(caps)}'


_RELEASE = re.compile(r'R(\d+) \(release\), REVISION: ([\d.]+)')
#: For each major version of Jetson Linux, the major version of JetPack.
_JETPACK = {32: 4, 34: 5, 35: 5, 36: 6, 38: 7, 39: 7}
_NOT_HERE = 'this is no Jetson'
_JETPACK_ADVICE = (
    'this library is part of JetPack (package nvidia-l4t-multimedia); a container needs the '
    'NVIDIA runtime (--runtime nvidia)'
)


def jetson_release(system: System, needs: Needs) -> Iterator[Finding]:
    """Report the board and its Jetson Linux release, or that this machine is no Jetson."""
    if not system.is_tegra:
        if needs.camera('argus') is Need.REQUIRED:
            yield fail(
                f'{_NOT_HERE}, and the parameter file has an argus camera',
                'use camera: v4l2, gstreamer or libcamera on this machine',
            )
        else:
            yield skip(_NOT_HERE)
        return
    model = system.read('proc/device-tree/model') or 'Jetson'
    match = _RELEASE.search(system.read('etc/nv_tegra_release'))
    if match is None:
        yield ok(
            (
                f'{model}, Linux {system.release}; its Jetson Linux release is unknown (no '
                '/etc/nv_tegra_release)'
            ),
            model=model,
            release='',
        )
        return
    release = f'R{match[1]}.{match[2]}'
    jetpack = _JETPACK.get(int(match[1]))
    yield ok(
        f'{model}, Jetson Linux {release}{f" (JetPack {jetpack})" if jetpack else ""}',
        model=model,
        release=release,
        jetpack=jetpack,
    )


def _of_jetson(
    question: Question, judge: Callable[[Need, dict[str, Any]], Finding]
) -> Callable[[System, Needs], Iterator[Finding]]:
    """
    Make a check for ``zc_doctor``: *judge* turns the answer to *question* into a finding.

    The check is skipped if no camera is an argus camera, or if this machine is no Jetson and no
    argus camera is required.
    """

    def check(system: System, needs: Needs) -> Iterator[Finding]:
        need = needs.camera('argus')
        if need is Need.UNUSED or (need is Need.POSSIBLE and not system.is_tegra):
            yield skip(
                'the parameter file has no argus camera' if need is Need.UNUSED else _NOT_HERE
            )
        else:
            yield judge(need, system.ask(question))

    return check


def _nvbufsurface(need: Need, answer: dict[str, Any]) -> Finding:
    """Report whether ``libnvbufsurface`` loads, and whether this package knows its structs."""
    if not answer.get('loaded'):
        return Finding(
            need.missing,
            f"libnvbufsurface can't be loaded: {answer['error']}",
            _JETPACK_ADVICE,
            '',
            answer,
        )
    file = answer['file'] or 'libnvbufsurface'
    if 'error' in answer:
        advice = (
            'give this user access to /dev/nvmap (group video; container: --device /dev/nvmap); '
            "if the user already has it, report this error and Jetson Linux's release to the "
            'authors of this package'
        )
        return Finding(need.missing, f'{file}: {answer["error"]}', advice, '', answer)
    return ok(f'{file}: an image was allocated and its layout is understood', **answer)


def _vic(need: Need, answer: dict[str, Any]) -> Finding:
    """Report whether the library of the VIC loads; the VIC makes block-linear images linear."""
    if 'error' in answer:
        # This is only a warning: the VIC is needed only if a camera's images are block-linear and
        # a consumer can't use this layout.
        return warn(
            f"libnvbufsurftransform can't be loaded: {answer['error']}", _JETPACK_ADVICE, **answer
        )
    return ok(f'{answer["file"] or "libnvbufsurftransform"} loads', **answer)


def describe_nvbufsurface(library: str = '') -> dict[str, Any]:
    """
    Load ``libnvbufsurface``, and allocate an image to check the library's structs.

    The argus camera makes the same check when it opens.
    """
    from zc_perception.jetson.nvbufsurface import check_structs, LIBRARY

    try:
        loaded = ctypes.CDLL(library or LIBRARY)
    except OSError as error:
        return {'error': str(error), 'loaded': False}
    answer: dict[str, Any] = {'loaded': True, 'file': file_of(loaded)}
    try:
        check_structs(library or None)
    except ZcError as error:
        return {**answer, 'error': str(error)}
    return answer


def describe_vic(library: str = '') -> dict[str, Any]:
    """Load the library of the video image compositor (VIC); return its file or the error."""
    from zc_perception.jetson.vic import TRANSFORM_LIBRARY

    try:
        return {'file': file_of(ctypes.CDLL(library or TRANSFORM_LIBRARY))}
    except OSError as error:
        return {'error': str(error)}


nvbufsurface = _of_jetson(describe_nvbufsurface, _nvbufsurface)
vic = _of_jetson(describe_vic, _vic)


class ArgusCamera(GStreamerCamera, ArgusKind):
    """
    A camera sensor that Argus drives, or any pipeline whose frames are in NVMM memory.

    :param library: name or path of ``libnvbufsurface``; ``None``: the system's library.
    :param transform_library: name or path of ``libnvbufsurftransform``; ``None``: the system's.
    :raises ConfigError: the machine is no Jetson, or the source element lacks a property.
    :raises CameraError: the sensor doesn't run, or ``libnvbufsurface`` has unknown structs.
    """

    def __init__(
        self,
        options: CameraOptions,
        *,
        library: str | None = None,
        transform_library: str | None = None,
    ) -> None:
        self._library = library
        self._transform_library = transform_library
        self._sensor_id = options.parameters['sensor_id']
        self._converted = 0
        self._signature: Hashable = None
        self._vic: Vic | None = None
        # Why the VIC can't make the LINEAR frames that a consumer asked for. The frames then stay
        # block-linear. Empty: the VIC has not failed.
        self._stays = ''
        self._sources: OrderedDict[BufferIdentity, DmaBuf] = OrderedDict()
        super().__init__(options)

    @classmethod
    def _description(cls, parameters: Mapping[str, Any]) -> str:
        return super()._description(parameters) or source_description(load_gstreamer(), parameters)

    def _offered_caps(self, formats: Sequence[Format]) -> str:
        return offered_nvmm_caps(formats)

    def _open_reader(self, first: Sample) -> FrameReader:
        if not self._format.nvmm:
            raise CameraError(
                f"{self._where} gives frames that are not in NVMM memory: '{self._format.caps}'; "
                'use camera: gstreamer'
            )
        from zc_perception.jetson.nvbufsurface import surface_image

        reader = NvmmFrames(self._gst, self._format, self._library)
        _, self._colours = surface_image(reader.parameters(first))
        return reader

    def _begin(self, first: Sample) -> None:
        super()._begin(first)
        # Take the colorimetry from the NvBufSurface: the caps don't say whether the colours' range
        # is full or limited.
        self._colorimetry = self._colours

    def _begin_copying(self, first: Sample, reason: str) -> None:
        raise CameraError(
            f'{self._where}: {reason}; its frames must be dma-bufs of nvmap: check that '
            '/dev/nvmap exists'
        )

    @property
    def identity(self) -> str:
        """The pipeline's text, which names the sensor by a number that never changes."""
        return f'argus: {self._text}'

    @property
    def heap_name(self) -> str:
        return HEAP

    def constraints(self) -> BufferConstraints:
        """
        Return the constraints: the format and modifier of the sensor's images, and LINEAR.

        If the sensor's images aren't LINEAR, then LINEAR costs more, because the VIC (NVIDIA's
        video image compositor) has to copy each image.
        """
        layout, size = self._layout, (self.width, self.height)
        formats: tuple[tuple[int, int], ...] = ((layout.fourcc, layout.modifier),)
        costs: tuple[float, ...] = (0.0,)
        if layout.modifier != LINEAR:
            formats, costs = (*formats, (layout.fourcc, LINEAR)), (*costs, 1.0)
        return BufferConstraints(
            'argus camera',
            formats=formats,
            costs=costs,
            heaps=(HEAP,),
            slots=RESERVE,
            min_size=size,
            max_size=size,
            placement=Placement.ONE_BUFFER,
        )

    def possible(self) -> BufferConstraints:
        """Return :meth:`constraints`, but without LINEAR if the VIC has failed."""
        now = self.constraints()
        return (
            replace(now, formats=now.formats[:1], costs=None)
            if self._stays and now.formats
            else now
        )

    def _convert(self, settings: BufferSettings) -> None:
        """Open the VIC, and make the pool of linear images into which the VIC copies frames."""
        from zc_perception.jetson.nvbufsurface import NvBufSurfaceHeap
        from zc_perception.jetson.vic import Vic

        vic: Vic | None = None
        try:
            vic = Vic(self._transform_library, self._library)
            heap = NvBufSurfaceHeap(self._library)
            made: list[tuple[Buffers, ImageLayout]] = []
            made.append(heap.allocate_image(settings.layout, self._colours))
        except (AllocationError, FormatError) as error:
            if vic is not None:
                vic.close()
            raise CameraError(
                f'{self._where} gives block-linear images, and the VIC can not convert them: '
                f'{error}'
            ) from error

        def allocate() -> Buffers:
            return (
                made.pop()[0] if made else heap.allocate_image(settings.layout, self._colours)[0]
            )

        self._pool = BufferPool(
            made[0][1],
            allocate,
            settings.slots,
            name='camera',
            reserve=min(RESERVE, settings.slots),
        )
        self._vic = vic

    def allocate(self, request: AllocationRequest) -> None:
        """
        Make the pool in the negotiated layout: the sensor's own, or LINEAR (the VIC converts).

        If LINEAR is wanted but the VIC fails, the frames keep the sensor's layout, provided that
        all consumers accept it. Otherwise CameraError is raised.
        """
        if request.modifiers[0] != LINEAR or self._layout.modifier == LINEAR:
            super().allocate(request)
            return
        try:
            self._convert(request.settings())
        except CameraError as error:
            if self._layout.modifier not in request.modifiers:
                raise
            self._stays = str(error)
            super().allocate(request)

    def _fill(self, pool: BufferPool, sample: Sample) -> tuple[Slot | None, bool]:
        if self._vic is None:
            return super()._fill(pool, sample)
        from zc_perception.jetson.nvbufsurface import SurfaceImage

        slot = pool.acquire()
        if slot is None:
            return None, True
        try:
            source = SurfaceImage((self._source(sample),), self._layout, self._colours)
            self._vic.transform(source, SurfaceImage(slot.buffers, slot.layout, self._colours))
        except AcceleratorError as error:
            pool.discard(slot)
            raise CameraError(f'{self._where}: {error}') from error
        except BaseException:
            pool.discard(slot)
            raise
        self._converted += 1
        return slot, True

    def _source(self, sample: Sample) -> DmaBuf:
        """
        Return this package's :class:`DmaBuf` for the dma-buf that contains the sample's image.

        The object is made when the dma-buf comes for the first time, and used again afterwards.
        """
        reader = self._reader
        memory = reader.memory(sample)
        assert memory is not None
        if memory.signature != self._signature:
            layout, _ = reader.layout(sample, memory)
            if layout != self._layout:
                raise CameraChangedError(
                    f'{self._where} now gives {layout.describe()} instead of '
                    f'{self._layout.describe()}'
                )
            self._signature = memory.signature
        identity = memory.parts[0].identity()
        buffer = self._sources.get(identity)
        if buffer is None:
            (buffer,) = own_descriptors(memory.parts, HEAP)
            self._sources[identity] = buffer
            if len(self._sources) > _KEPT:
                self._sources.popitem(last=False)[1].close()
        return buffer

    def facts(self) -> dict[str, object]:
        return {
            **super().facts(),
            'sensor_id': self._sensor_id,
            'converted_by_vic': self._converted,
        }

    def notices(self) -> Sequence[str]:
        found = list(super().notices())
        if self._stays:
            found.append(
                f"{self._stays}; the camera's frames stay block-linear, and consumers that need "
                'LINEAR frames are refused'
            )
        if self._vic is not None:
            found.append(
                f'{self._where} gives block-linear images, but a consumer needs linear images; '
                'the VIC copies each frame to a linear image (this takes memory bandwidth, but no '
                'CPU time)'
            )
        return found

    def close(self) -> None:
        super().close()
        while self._sources:
            self._sources.popitem()[1].close()
        if self._vic is not None:
            self._vic.close()
