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
Read a stream's format and memory from GStreamer's caps and samples.

Caps give the format. A sample gives the dma-bufs, and each plane's offset in its dma-buf. The caps
don't show whether a frame is in dma-bufs: even with plain ``video/x-raw`` caps, a LINEAR frame may
be in dma-bufs. Only the type of the frame's memories shows this.

In the other direction, :func:`offered_caps` makes caps of the formats that consumers accept. The
sink answers the CAPS query with these caps. The elements before the sink then convert their
frames, or choose another mode of their device, if they can.

Source: GStreamer's *DMA buffers* design, *GstVideoMeta*, *GstVideoCropMeta*, *GstFdMemory* and
*GstDmaBufMemory* documentation. In caps with the feature ``memory:DMABuf`` the format is
``DMA_DRM``, and ``drm-format`` names fourcc and modifier. Before GStreamer 1.24 such caps had
GStreamer's own format name, such as ``NV12``, and no modifier.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
import contextlib
import ctypes
from ctypes import byref, c_int, c_size_t, c_uint
from dataclasses import dataclass, replace
import time

import numpy as np

from zc_perception.camera.gstreamer.abi import (
    GStreamer,
    MAP_READ,
    MapInfo,
    MAX_PLANES,
    VideoCropMeta,
    VideoInfo,
    VideoMeta,
)
from zc_perception.camera.gstreamer.kind import RESERVE
from zc_perception.camera.gstreamer.pipeline import Pipeline, Sample
from zc_perception.errors import CameraChangedError, CameraError, FormatError, LayoutError
from zc_perception.mapping import map_buffers
from zc_perception.memory.dmabuf import BufferIdentity, CpuAccess
from zc_perception.memory.pool import (
    BorrowedMemory,
    Buffers,
    close_buffers,
    ForeignBufferPool,
    HeldBuffers,
    own_descriptors,
    Slot,
)
from zc_perception.negotiation.constraints import BufferConstraints, Format
from zc_perception.pixel.colorimetry import (
    Colorimetry,
    from_gstreamer_colorimetry,
    Matrix,
    Range,
    RGB_FULL,
)
from zc_perception.pixel.format_names import (
    DMA_DRM,
    drm_format_string,
    from_gstreamer,
    gstreamer_format,
    parse_drm_format,
)
from zc_perception.pixel.fourcc import fourcc_name, pixel_format
from zc_perception.pixel.layout import compute_layout, ImageLayout, PlaneLayout, validate_layout
from zc_perception.pixel.modifier import INVALID, LINEAR, same_layout
from zc_perception.pixel.readable import READABLE

NVMM_FEATURE, DMABUF_FEATURE = 'memory:NVMM', 'memory:DMABuf'
_SD_LINES = 576


@dataclass(frozen=True)
class StreamFormat:
    """
    A stream's frame format, as its caps describe it.

    :param modifier: INVALID where the caps don't give it: caps with the feature ``memory:DMABuf``
        before GStreamer 1.24.
    :param framerate: frames per second; 0: the rate varies or isn't known.
    :param nvmm: whether frames are NvBufSurfaces.
    :param dmabuf: whether the caps have the feature ``memory:DMABuf``.
    :param offsets: each plane's offset in frames without a GstVideoMeta.
    :param strides: each plane's stride in frames without a GstVideoMeta.
    """

    width: int
    height: int
    fourcc: int
    modifier: int
    framerate: float
    colorimetry: Colorimetry
    nvmm: bool
    dmabuf: bool
    caps: str
    offsets: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def same_picture(self, other: StreamFormat) -> bool:
        """Return whether two formats are equal except for frame rate and the text of the caps."""
        return replace(self, framerate=0.0, caps='') == replace(other, framerate=0.0, caps='')


def read_format(gst: GStreamer, caps: int, *, assume_linear: bool = False) -> StreamFormat:
    """
    Return the format that caps describe.

    :param caps: the address of the GstCaps.
    :param assume_linear: whether caps without a modifier, such as ``video/x-raw(memory:DMABuf),
        format=NV12``, mean LINEAR. If not, the modifier is INVALID.
    :raises FormatError: the stream isn't raw video, is in memory that can't be shared, has one
        interlaced field per frame, or has a format or colorimetry that this package doesn't know.
    """
    text = gst.take_text(gst.gst_caps_to_string(caps))
    structure, features = gst.gst_caps_get_structure(caps, 0), gst.gst_caps_get_features(caps, 0)
    if gst.gst_structure_get_name(structure) != b'video/x-raw':
        raise FormatError(
            f"caps '{text}' are no raw video; put a decoder or parser before the sink"
        )
    names = [
        gst.gst_caps_features_get_nth(features, i).decode()
        for i in range(gst.gst_caps_features_get_size(features))
    ]
    memory = [name for name in names if name.startswith('memory:')]
    nvmm, dmabuf = NVMM_FEATURE in memory, DMABUF_FEATURE in memory
    if foreign := [
        name
        for name in memory
        if name not in (NVMM_FEATURE, DMABUF_FEATURE, 'memory:SystemMemory')
    ]:
        raise FormatError(f"caps '{text}': another device can't import {foreign[0]}; put an "
                          'element that converts frames to '
                          f'video/x-raw({DMABUF_FEATURE}) before the sink')  # fmt: skip

    def word(field: str) -> str:
        return (gst.gst_structure_get_string(structure, field.encode()) or b'').decode(
            'utf-8', 'replace'
        )

    if word('interlace-mode') in ('alternate', 'fields'):
        raise FormatError(
            f"caps '{text}': each frame is only one field of an interlaced image; put a "
            'deinterlace element before the sink'
        )
    width, height, over, under = c_int(), c_int(), c_int(), c_int()
    sized = [
        gst.gst_structure_get_int(structure, name, byref(value))
        for name, value in ((b'width', width), (b'height', height))
    ]
    if not all(sized) or not word('format'):
        raise FormatError(
            f"caps '{text}' have no size or no format; put a caps filter with both before the sink"
        )
    explicit = word('format') == DMA_DRM
    fourcc, modifier = _format(word('format'), word('drm-format'))
    old_style = dmabuf and not explicit and not assume_linear
    info = VideoInfo()
    known = (
        modifier == LINEAR
        and bool(gst.gst_video_info_from_caps(byref(info), caps))
        and info.stride[0] > 0
    )
    paced = (
        gst.gst_structure_get_fraction(structure, b'framerate', byref(over), byref(under))
        and under.value
    )
    return StreamFormat(
        width.value,
        height.value,
        fourcc,
        INVALID if old_style else modifier,
        over.value / under.value if paced else 0.0,
        _colorimetry(word('colorimetry'), fourcc, height.value),
        nvmm,
        dmabuf,
        text,
        tuple(info.offset) if known else (),
        tuple(info.stride) if known else (),
    )


def _colorimetry(value: str, fourcc: int, height: int) -> Colorimetry:
    """Return the colorimetry in the caps; GStreamer's defaults replace missing values."""
    if pixel_format(fourcc).is_yuv:
        matrix = Matrix.BT601 if height <= _SD_LINES else Matrix.BT709
        default, wanted = Colorimetry(matrix, Range.LIMITED), 'bt709'
    else:
        default, wanted = RGB_FULL, 'sRGB'
    try:
        return from_gstreamer_colorimetry(value, default) if value else default
    except FormatError as error:
        raise FormatError(
            f"{error}; put 'videoconvert ! video/x-raw,colorimetry={wanted}' at the end of the "
            'pipeline'
        ) from error


def _format(word: str, drm_format: str) -> tuple[int, int]:
    try:
        found = parse_drm_format(drm_format) if word == DMA_DRM else from_gstreamer(word)
        pixel_format(found[0])
        return found
    except FormatError as error:
        reason = (
            str(error)
            if word == DMA_DRM
            else f"GStreamer format '{word}' has no DRM fourcc in this package"
        )
        names = ', '.join(name for fourcc in READABLE for name in _gstreamer_names(fourcc, LINEAR))
        raise FormatError(
            f'{reason}; add an element to the end of the pipeline, such as videoconvert, that '
            f'converts to one of {names}'
        ) from error


@dataclass(frozen=True)
class FrameMemory:
    """
    The dma-bufs of a frame.

    :param parts: the frame's memories, in GStreamer's order.
    :param signature: a key that two frames share if their memories and planes have the same
        offsets, sizes and strides. Their layouts are then equal.
    """

    parts: tuple[BorrowedMemory, ...]
    signature: Hashable


class FrameReader:
    """
    Finds the dma-bufs that hold the frames of one stream.

    Frames in a memfd (GstFdMemory, for example from pipewiresrc) are copied, not shared. A shared
    memfd would need a seal that keeps other processes from writing. But the element that owns the
    memfd maps it for writing for each frame, and the seal would stop this element, too.

    :param what: the stream's format.
    """

    def __init__(self, gst: GStreamer, what: StreamFormat) -> None:
        self._gst = gst
        self._what = what

    def memory(self, sample: Sample) -> FrameMemory | None:
        """Return a frame's dma-bufs; ``None``: at least one of its memories is not a dma-buf."""
        gst, buffer = self._gst, sample.buffer
        offset, capacity = c_size_t(), c_size_t()
        parts = []
        for index in range(gst.gst_buffer_n_memory(buffer)):
            memory = gst.gst_buffer_peek_memory(buffer, index)
            if not gst.gst_is_dmabuf_memory(memory):
                return None
            size = gst.gst_memory_get_sizes(memory, byref(offset), byref(capacity))
            number = gst.gst_dmabuf_memory_get_fd(memory)
            parts.append(BorrowedMemory(number, offset.value, size))
        if not parts:
            return None
        meta, crop = (
            gst.gst_buffer_get_meta(buffer, gst.video_meta_type),
            gst.gst_buffer_get_meta(buffer, gst.crop_meta_type),
        )
        signature = (
            tuple((part.offset, part.size) for part in parts),
            _bytes(meta, VideoMeta.width.offset, VideoMeta.stride.offset + VideoMeta.stride.size)
            if meta
            else None,
            _bytes(crop, VideoCropMeta.x.offset, ctypes.sizeof(VideoCropMeta)) if crop else None,
        )
        return FrameMemory(tuple(parts), signature)

    def layout(self, sample: Sample, memory: FrameMemory) -> tuple[ImageLayout, tuple[int, ...]]:
        """
        Return the frame's layout, and for each buffer of the layout its index in *memory*'s parts.

        If several parts are in the same dma-buf, the index is that of the first of them.

        :raises LayoutError: a plane lies outside of the frame's memories.
        :raises FormatError: the crop rectangle can't be applied without a copy.
        """
        identities = [part.identity() for part in memory.parts]
        # Several memories, one for each plane, may be parts of the same dma-buf.
        first = [identities.index(identity) for identity in identities]
        extents = [(first[i], part.offset, part.size) for i, part in enumerate(memory.parts)]
        return number_buffers(place_image(self._gst, sample.buffer, self._what, extents))


def number_buffers(layout: ImageLayout) -> tuple[ImageLayout, tuple[int, ...]]:
    """
    Give a layout's buffers new numbers, from 0 in the order in which the planes use them.

    :returns: the layout with the new numbers, and for each new number the buffer's old number.
    """
    order = tuple(dict.fromkeys(plane.buffer for plane in layout.planes))
    planes = tuple(replace(plane, buffer=order.index(plane.buffer)) for plane in layout.planes)
    return replace(layout, planes=planes), order


def place_image(
    gst: GStreamer, buffer: int, what: StreamFormat, extents: Sequence[tuple[int, int, int]]
) -> ImageLayout:
    """
    Return a frame's layout, with the frame's crop rectangle applied.

    :param extents: for each memory of the GstBuffer, the number of the layout's buffer that
        contains it, its offset in this buffer, and its size, both in bytes.
    :raises LayoutError: a plane lies outside of the frame's memories.
    :raises FormatError: the crop rectangle can't be applied without a copy.
    """
    crop = gst.gst_buffer_get_meta(buffer, gst.crop_meta_type)
    meta = gst.gst_buffer_get_meta(buffer, gst.video_meta_type) if crop else None
    if meta:
        # The caps have the size after cropping; GstVideoMeta has the size of the whole frame.
        whole_frame = VideoMeta.from_address(meta)
        what = replace(what, width=whole_frame.width, height=whole_frame.height)
    places = [
        (extents[memory], inside, stride)
        for memory, inside, stride in plane_places(gst, buffer, what)
    ]
    starts = [(whole, begin + inside) for (whole, begin, _), inside, _ in places]
    planes = []
    for index, ((whole, begin, size), _, stride) in enumerate(places):
        start = starts[index][1]
        end = min(
            [begin + size, *(other for same, other in starts if same == whole and other > start)]
        )
        planes.append(
            PlaneLayout(whole, start, stride, _plane_size(what, index, stride, end - start))
        )
    layout = ImageLayout(what.width, what.height, what.fourcc, what.modifier, tuple(planes))
    return layout if not crop else cropped(layout, VideoCropMeta.from_address(crop))


def plane_places(gst: GStreamer, buffer: int, what: StreamFormat) -> list[tuple[int, int, int]]:
    """
    Return for each plane the index of its GstMemory, its offset in this memory, and its stride.

    :raises LayoutError: a plane begins outside of the memories, or its offset isn't known.
    """
    meta = gst.gst_buffer_get_meta(buffer, gst.video_meta_type)
    if meta:
        video = VideoMeta.from_address(meta)
        count = min(video.n_planes, MAX_PLANES)
        offsets, strides = tuple(video.offset)[:count], tuple(video.stride)[:count]
    elif what.offsets:
        offsets, strides = what.offsets, what.strides
    elif what.modifier == LINEAR:
        default = compute_layout(
            what.fourcc, what.width, what.height, stride_align=4, offset_align=1, height_align=2
        )
        offsets, strides = (
            tuple(p.offset for p in default.planes),
            tuple(p.stride for p in default.planes),
        )
    else:
        raise LayoutError(
            f"frames with caps '{what.caps}' have no GstVideoMeta, so the offsets of their "
            'planes are not known'
        )
    places = []
    index, length, skip = c_uint(), c_uint(), c_size_t()
    for plane, (offset, stride) in enumerate(zip(offsets, strides, strict=True)):
        if stride == 0:
            break  # GstVideoInfo always has four strides; those after the last plane are 0
        if stride < 0 or not gst.gst_buffer_find_memory(
            buffer, offset, 1, byref(index), byref(length), byref(skip)
        ):
            raise LayoutError(
                f"plane {plane}: offset {offset} with stride {stride} is not in the frame's "
                'memory; check the element before the sink'
            )
        places.append((index.value, skip.value, stride))
    return places


def _plane_size(what: StreamFormat, index: int, stride: int, available: int) -> int:
    """
    Return a plane's size in bytes.

    *available* is the highest possible size: the bytes up to the next plane or the memory's end.

    The last row of a LINEAR plane may lack its padding. A tiled plane gets all of *available*,
    because only the vendor knows its size.
    """
    planes = pixel_format(what.fourcc).planes
    if what.modifier != LINEAR or index >= len(planes):
        return max(1, available)
    return max(1, min(stride * planes[index].rows(what.height), available))


def cropped(layout: ImageLayout, crop: ctypes.Structure) -> ImageLayout:
    """
    Return the layout of an image's visible part, in the same memory.

    :raises FormatError: *crop* isn't in the image or is smaller than one chroma sample, or it cuts
        the left or top off an image that isn't LINEAR.
    """
    whole = (crop.x, crop.y, crop.width, crop.height)
    if whole == (0, 0, layout.width, layout.height):
        return layout
    fmt = layout.format
    where = (
        f'crop {crop.width}x{crop.height}+{crop.x}+{crop.y} of '
        f'{fourcc_name(layout.fourcc)} {layout.width}x{layout.height}'
    )
    if (
        crop.x + crop.width > layout.width
        or crop.y + crop.height > layout.height
        or not crop.width
        or not crop.height
    ):
        raise FormatError(f'{where} is not inside of the image')
    if layout.modifier != LINEAR:
        if crop.x or crop.y:
            raise FormatError(
                f'{where}: only a LINEAR image can be cropped at its left and top without a copy; '
                "put 'videoconvert', which makes the image LINEAR, before the crop"
            )
        # The crop only removes padding at the right or bottom, such as lines 1080 to 1087 of a
        # decoder's frame. So the planes' offsets don't change.
        return replace(layout, width=crop.width, height=crop.height)
    # As videocrop does when it copies, begin each plane at the sample that contains the crop's
    # corner. Leave out the last column or row if its chroma sample is incomplete.
    width = crop.width - crop.width % fmt.horizontal
    height = crop.height - crop.height % fmt.vertical
    if not width or not height:
        raise FormatError(
            f'{where}: the crop must have at least {fmt.horizontal}x{fmt.vertical} pixels, the '
            'area of one chroma sample'
        )
    planes = []
    for index, plane in enumerate(layout.planes):
        element = fmt.planes[index]
        x, y = crop.x - crop.x % element.horizontal, crop.y - crop.y % element.vertical
        skipped = element.rows(y) * plane.stride if y else 0
        skipped += element.row_bytes(x) if x else 0
        size = plane.stride * (element.rows(height) - 1) + element.row_bytes(width)
        planes.append(
            PlaneLayout(
                plane.buffer, plane.offset + skipped, plane.stride, min(size, plane.size - skipped)
            )
        )
    return ImageLayout(width, height, layout.fourcc, layout.modifier, tuple(planes))


def _bytes(address: int, start: int, end: int) -> bytes:
    return ctypes.string_at(address + start, end - start)


READABLE_FORMATS: tuple[Format, ...] = tuple((fourcc, LINEAR) for fourcc in READABLE)
"""The formats whose pixels this package can read with the CPU; all are LINEAR."""


def accepted_formats(consumers: Iterable[BufferConstraints]) -> tuple[Format, ...]:
    """
    Return the formats that all consumers accept, the best first.

    If no consumer limits the formats, these are :data:`READABLE_FORMATS`.

    A consumer is ignored if it accepts none of the formats that all consumers before it
    accept. The later negotiation of buffers refuses this consumer with a message that names it.
    """
    accepted: tuple[Format, ...] = ()
    for consumer in consumers:
        if consumer.formats is None and not consumer.uses_cpu:
            continue
        own = accepted or consumer.formats or READABLE_FORMATS
        accepted = tuple(fmt for fmt in own if consumer.accepts_format(fmt)) or accepted
    return accepted or READABLE_FORMATS


def offered_caps(formats: Sequence[Format], *, assume_linear: bool) -> str:
    """
    Return caps of *formats* for a pipeline whose frames are in dma-bufs or system memory.

    The result is empty if GStreamer has no caps for any of *formats*.

    :param assume_linear: whether caps with the feature ``memory:DMABuf`` but no modifier mean
        LINEAR. If not, they mean modifier INVALID.
    """
    explicit, old_style, plain = [], [], []
    for fourcc, modifier in formats:
        if modifier != INVALID:
            with contextlib.suppress(FormatError):
                explicit += [drm_format_string(fourcc, one) for one in same_layout(modifier)]
            plain += _gstreamer_names(fourcc, modifier)
        if modifier == (LINEAR if assume_linear else INVALID):
            old_style += _gstreamer_names(fourcc, LINEAR)
    dmabuf = f'video/x-raw({DMABUF_FEATURE}), format=(string)'
    structures = [f'{dmabuf}{DMA_DRM}, drm-format=(string){_listed(explicit)}'] if explicit else []
    structures += [f'{dmabuf}{_listed(old_style)}'] if old_style else []
    structures += [f'video/x-raw, format=(string){_listed(plain)}'] if plain else []
    return '; '.join(structures)


def offered_nvmm_caps(formats: Sequence[Format]) -> str:
    """
    Return caps of *formats* for a pipeline whose frames are NvBufSurfaces.

    NVMM caps have no modifier, so only formats with LINEAR or INVALID are used. If *formats* has
    none of these, the result is empty.
    """
    names = [
        name
        for fourcc, modifier in formats
        if modifier in (LINEAR, INVALID)
        for name in _gstreamer_names(fourcc, LINEAR)
    ]
    return f'video/x-raw({NVMM_FEATURE}), format=(string){_listed(names)}' if names else ''


def _gstreamer_names(fourcc: int, modifier: int) -> list[str]:
    try:
        name = gstreamer_format(fourcc, modifier)
    except FormatError:
        return []
    return [] if name == DMA_DRM else [name]


def _listed(names: Iterable[str]) -> str:
    return '{ ' + ', '.join(f'"{name}"' for name in dict.fromkeys(names)) + ' }'


# Spare slots for the buffers that SharedFrames.pool() doesn't find. At the start some buffers are
# still queued in the source, and later a V4L2 pool grows to 32 buffers while consumers are slow.
# If there were fewer slots than buffers, a slot would be replaced for each frame, and every
# consumer would have to import the buffer again.
MORE = 24
# Stop looking for buffers if no new buffer has come for the time of _IDLE_FRAMES frames. This time
# is at least _IDLE_S and at most _MAX_IDLE_S seconds.
_IDLE_S, _IDLE_FRAMES, _MAX_IDLE_S = 0.3, 4, 1.5
# Refuse a source with fewer than RESERVE buffers only after this time in seconds: on a busy
# machine the source may need this time to fill its first buffers.
_SCARCE_S = 3.0
_MAX_SIGNATURES = 64


class SharedFrames:
    """
    Makes the slots of a pool from the pipeline's own buffers, without a copy.

    GStreamer may fill a buffer again after its sample is closed, so each sample is held while its
    slot is in use. A device may still read a slot that the pool has retired (no longer leases), so
    the sample of such a slot is held until the pipeline is closed.

    :param layout: the layout of every frame; a frame with another layout is refused.
    :param where: the pipeline's name for error messages.
    :param heap: the name of the buffers' allocator.
    """

    def __init__(
        self, pipeline: Pipeline, reader: FrameReader, layout: ImageLayout, where: str, heap: str
    ) -> None:
        self._pipeline = pipeline
        self._reader = reader
        self._layout = layout
        self._where = where
        self._heap = heap
        self._orders: dict[Hashable, tuple[int, ...]] = {}
        self.held = HeldBuffers()
        self.copied_upstream = 0

    def pool(self, wanted: int, framerate: float) -> tuple[ForeignBufferPool, list[Sample]]:
        """
        Find the source's buffers by pulling frames, and make a pool of these buffers.

        :param wanted: the search ends when this number of buffers is known.
        :param framerate: frames per second, for the time to wait for a new buffer; 0: unknown.
        :returns: the pool, and the pulled frames, which the caller uses before it pulls more.
            For a live camera the list is empty: the pulled frames are old by now, and were closed.
        :raises CameraError: there are fewer than two buffers, or their layouts differ.
        """
        known: list[Buffers] = []
        samples: list[Sample] = []
        try:
            try:
                self._discover(wanted, framerate, known, samples)
            except CameraChangedError as error:
                raise CameraError(f"{self._where}: its frames' layouts differ: {error}") from error
            if len(known) < RESERVE and not self._pipeline.ended:
                raise CameraError(
                    f'{self._where} gives only {len(known)} buffers before it wants them back, '
                    f'but {RESERVE} are needed; give its source more buffers: raise '
                    "parameter 'slots', or a property of the source such as queue-size"
                )
            reserve = min(RESERVE, len(known))
            own, known = known, []  # the pool closes these buffers, even if its constructor fails
            pool = ForeignBufferPool(
                self._layout,
                own,
                name='camera',
                on_free=self.held.free,
                reserve=reserve,
                most=len(own) + MORE,
            )
        except BaseException:
            for buffers in known:
                close_buffers(buffers)
            for sample in samples:
                sample.close()
            raise
        pool.add_retire_listener(self.held.ended)
        if not self._pipeline.live:
            return pool, samples
        for sample in samples:
            sample.close()
        return pool, []

    def _discover(
        self, wanted: int, framerate: float, known: list[Buffers], samples: list[Sample]
    ) -> None:
        idle = (
            max(_IDLE_S, min(_MAX_IDLE_S, _IDLE_FRAMES / framerate)) if framerate else _MAX_IDLE_S
        )
        seen: set[tuple[BufferIdentity, ...]] = set()
        since = time.monotonic()
        while len(known) < wanted and not self._pipeline.ended:
            if time.monotonic() - since >= (idle if len(known) >= RESERVE else _SCARCE_S):
                break
            sample = self._pipeline.pull(idle)
            if sample is None:
                continue
            samples.append(sample)
            memory = self._reader.memory(sample)
            if memory is None:
                # The source has run out of buffers and has begun to copy frames to system memory.
                break
            order = self._order(sample, memory)
            identities = tuple(memory.parts[i].identity() for i in order)
            if identities not in seen:
                seen.add(identities)
                known.append(own_descriptors((memory.parts[i] for i in order), self._heap))
                since = time.monotonic()

    def _order(self, sample: Sample, memory: FrameMemory) -> tuple[int, ...]:
        """
        Return for each buffer of the frame's layout its index in *memory*'s parts.

        The indices are found once for each signature, and stored.

        :raises CameraChangedError: the frame's layout differs from the negotiated one.
        """
        order = self._orders.get(memory.signature)
        if order is None:
            layout, order = self._reader.layout(sample, memory)
            if layout != self._layout:
                raise CameraChangedError(
                    f'{self._where} now gives {layout.describe()} instead of '
                    f'{self._layout.describe()}; it is opened again'
                )
            if len(self._orders) >= _MAX_SIGNATURES:
                self._orders.clear()
            self._orders[memory.signature] = order
        return order

    def slot_for(self, pool: ForeignBufferPool, sample: Sample) -> Slot | None:
        """
        Acquire the slot of the sample's buffers; the slot then holds the sample.

        ``None``: the sample is a copy that the source made, or the pool has no free slot.

        :raises CameraChangedError: the sample's layout differs from the negotiated one.
        :raises LayoutError: another slot has one of the sample's buffers already, or the layout
            doesn't fit the buffers.
        """
        memory = self._reader.memory(sample)
        if memory is None:
            # Consumers hold all buffers of the source, so the source silently copied this frame.
            self.copied_upstream += 1
            return None
        order = self._order(sample, memory)
        slot = pool.slot_of(tuple(memory.parts[i].identity() for i in order))
        if slot is None:
            slot = pool.adopt(own_descriptors((memory.parts[i] for i in order), self._heap))
        if slot is not None:
            slot = pool.acquire(slot.index)
        if slot is not None:
            self.held.hold(slot, sample.close)
        return slot


def frame_layout(gst: GStreamer, sample: Sample, what: StreamFormat) -> ImageLayout:
    """
    Return the frame's layout; its buffer number *i* is the frame's memory number *i*.

    :raises LayoutError: a plane lies outside of the frame's memories.
    :raises FormatError: the crop rectangle isn't in the image, or is smaller than one chroma
        sample.
    """
    extents = []
    for index in range(gst.gst_buffer_n_memory(sample.buffer)):
        size = gst.gst_memory_get_sizes(
            gst.gst_buffer_peek_memory(sample.buffer, index), None, None
        )
        extents.append((index, 0, size))
    layout = place_image(gst, sample.buffer, what, extents)
    validate_layout(layout, [size for _, _, size in extents][: layout.num_buffers])
    return layout


def copy_frame(gst: GStreamer, sample: Sample, what: StreamFormat, slot: Slot) -> int:
    """
    Copy a LINEAR frame to *slot*, plane by plane; return the number of bytes written.

    :raises CameraError: a memory can't be mapped.
    :raises LayoutError: a plane lies outside of the frame's memories.
    """
    layout = frame_layout(gst, sample, what)
    maps: list[tuple[int, ctypes.Structure]] = []
    written = 0
    try:
        for index in range(layout.num_buffers):
            memory, info = gst.gst_buffer_peek_memory(sample.buffer, index), MapInfo()
            if not gst.gst_memory_map(memory, byref(info), MAP_READ):
                raise CameraError(
                    "the CPU can't read a frame's memory; at the end of the pipeline, put an "
                    'element that gives frames in system memory (caps video/x-raw)'
                )
            maps.append((memory, info))
        sources = [(ctypes.c_uint8 * info.size).from_address(info.data) for _, info in maps]
        with map_buffers(
            slot.layout, slot.buffers, CpuAccess.READ | CpuAccess.WRITE, []
        ) as planes:
            for array, target in zip(layout.arrays, planes, strict=True):
                source: np.ndarray[tuple[int, ...], np.dtype[np.generic]] = np.ndarray(
                    array.shape, array.sample, sources[array.buffer], array.offset, array.strides
                )
                np.copyto(target, source)
                written += source.nbytes
    finally:
        for memory, info in maps:
            gst.gst_memory_unmap(memory, byref(info))
    return written
