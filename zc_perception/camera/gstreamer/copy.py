"""Copies a GStreamer frame that lies in memory which nobody can share: the one way in for it, and always booked."""

from __future__ import annotations

import ctypes
from ctypes import byref

import numpy as np

from zc_perception.camera.gstreamer.abi import MAP_READ, GStreamer, MapInfo
from zc_perception.camera.gstreamer.image import StreamFormat, place_image
from zc_perception.camera.gstreamer.pipeline import Sample
from zc_perception.errors import CameraError
from zc_perception.mapping import map_buffers
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.pool import Slot
from zc_perception.pixel.layout import ImageLayout, validate_layout


def frame_layout(gst: GStreamer, sample: Sample, what: StreamFormat) -> ImageLayout:
    """Where the frame's planes lie in its memories, which are the layout's buffers.

    :raises LayoutError: not in them.
    :raises FormatError: its crop rectangle isn't on whole samples.
    """
    extents = []
    for index in range(gst.gst_buffer_n_memory(sample.buffer)):
        size = gst.gst_memory_get_sizes(gst.gst_buffer_peek_memory(sample.buffer, index), None, None)
        extents.append((index, 0, size))
    layout = place_image(gst, sample.buffer, what, extents)
    validate_layout(layout, [size for _, _, size in extents][: layout.num_buffers])
    return layout


def copy_frame(gst: GStreamer, sample: Sample, what: StreamFormat, slot: Slot) -> int:
    """Write a LINEAR frame's samples to *slot*, plane by plane; the bytes that were written.

    :raises CameraError: a memory can't be mapped.
    :raises LayoutError: the frame's planes don't lie in its memories.
    """
    layout = frame_layout(gst, sample, what)
    maps: list[tuple[int, MapInfo]] = []
    written = 0
    try:
        for index in range(layout.num_buffers):
            memory, info = gst.gst_buffer_peek_memory(sample.buffer, index), MapInfo()
            if not gst.gst_memory_map(memory, byref(info), MAP_READ):
                raise CameraError("a frame's memory can't be read by the CPU; put an element before the sink that makes video/x-raw of it")
            maps.append((memory, info))
        sources = [(ctypes.c_uint8 * info.size).from_address(info.data) for _, info in maps]
        with map_buffers(slot.layout, slot.buffers, CpuAccess.READ | CpuAccess.WRITE, []) as planes:
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
