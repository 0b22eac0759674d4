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
How a pipeline's frames come into a pool.

:class:`SharedFrames` takes frames that lie in the pipeline's own buffers: it knows these buffers,
    their holders, and when GStreamer may have them back. :func:`copy_frame` copies a frame in
    memory that can't be shared, which is always booked.
"""

from __future__ import annotations

from collections.abc import Hashable
import ctypes
from ctypes import byref
import time

import numpy as np

from zc_perception.camera.gstreamer.abi import GStreamer, MAP_READ, MapInfo
from zc_perception.camera.gstreamer.image import (
    FrameMemory,
    FrameReader,
    place_image,
    StreamFormat,
)
from zc_perception.camera.gstreamer.pipeline import Pipeline, Sample
from zc_perception.errors import CameraChangedError, CameraError
from zc_perception.mapping import map_buffers
from zc_perception.memory.dmabuf import BufferIdentity, CpuAccess
from zc_perception.memory.foreign_pool import ForeignBufferPool, HeldBuffers, own_descriptors
from zc_perception.memory.pool import Buffers, close_buffers, Slot
from zc_perception.pixel.layout import ImageLayout, validate_layout

RESERVE = 2
"""One frame is being handed over while the next one comes."""
# Buffers that a source has queued itself, or that come by later, beyond those found at first: a
# V4L2 pool grows to 32 while consumers are slow. With fewer slots than that each frame would be a
# new buffer to every consumer, which imports it anew.
MORE = 24
# No new buffer for so long, and for so many frame periods: its source has no more.
_IDLE_S, _IDLE_FRAMES, _MAX_IDLE_S = 0.3, 4, 1.5
# With too few buffers its source may only be slow, on a busy machine: nobody is refused sooner.
_SCARCE_S = 3.0
_MAX_SIGNATURES = 64


class SharedFrames:
    """
    Turns a pipeline's samples into slots of a pool over the pipeline's own buffers.

    GStreamer may fill a buffer again once its sample is closed. So each sample is held while its
    slot is in use. A device may still read a slot that was retired: its sample is held until the
    pipeline is gone.

    :param layout: the layout of every frame; others are refused.
    :param where: the pipeline, for messages.
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
        Collect frames until the source has no more buffers, and make a pool of them.

        It also ends when there are *wanted* frames.

        :returns: the pool, and the frames that were held: a file's are its first frames; a live
            camera's are old by now, and dropped.
        :raises CameraError: there are fewer than two, or they are not alike.
        """
        known: list[Buffers] = []
        samples: list[Sample] = []
        try:
            try:
                self._discover(wanted, framerate, known, samples)
            except CameraChangedError as error:
                raise CameraError(f'{self._where}: its frames are not alike: {error}') from error
            if len(known) < RESERVE and not self._pipeline.ended:
                raise CameraError(
                    f'{self._where} gives {len(known)} buffers before it wants them back, '
                    f'{RESERVE} are needed; let its source have more: '
                    "parameter 'slots', and an element's own queue-size, num-buffers or the like"
                )
            reserve = min(RESERVE, len(known))
            own, known = known, []  # the pool's, whatever becomes of it
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
                break  # it has run out of buffers, and begun to copy
            order = self._order(sample, memory)
            identities = tuple(memory.parts[i].identity() for i in order)
            if identities not in seen:
                seen.add(identities)
                known.append(own_descriptors((memory.parts[i] for i in order), self._heap))
                since = time.monotonic()

    def _order(self, sample: Sample, memory: FrameMemory) -> tuple[int, ...]:
        """
        Return which of the frame's memories are the layout's buffers.

        It is computed once for all frames that are alike.
        """
        order = self._orders.get(memory.signature)
        if order is None:
            layout, order = self._reader.layout(sample, memory)
            if layout != self._layout:
                raise CameraChangedError(
                    f'{self._where} now gives {layout.describe()}, agreed on was '
                    f'{self._layout.describe()}; it is opened again'
                )
            if len(self._orders) >= _MAX_SIGNATURES:
                self._orders.clear()
            self._orders[memory.signature] = order
        return order

    def slot_for(self, pool: ForeignBufferPool, sample: Sample) -> Slot | None:
        """
        Return the sample's slot, being filled, which holds the sample from here on.

        ``None``: there is no place for it.

        :raises CameraChangedError: its planes don't lie where the consumers were told.
        :raises LayoutError: some of its buffers are another frame's.
        """
        memory = self._reader.memory(sample)
        if memory is None:
            # Consumers hold all of its source's buffers, and that made a copy without a word.
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
    Return where the frame's planes lie in its memories, the layout's buffers.

    :raises LayoutError: not in them.
    :raises FormatError: its crop rectangle isn't on whole samples.
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
    Write a LINEAR frame's samples to *slot*, plane by plane; the bytes that were written.

    :raises CameraError: a memory can't be mapped.
    :raises LayoutError: the frame's planes don't lie in its memories.
    """
    layout = frame_layout(gst, sample, what)
    maps: list[tuple[int, ctypes.Structure]] = []
    written = 0
    try:
        for index in range(layout.num_buffers):
            memory, info = gst.gst_buffer_peek_memory(sample.buffer, index), MapInfo()
            if not gst.gst_memory_map(memory, byref(info), MAP_READ):
                raise CameraError(
                    "a frame's memory can't be read by the CPU; put an element before the sink "
                    'that makes video/x-raw of it'
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
