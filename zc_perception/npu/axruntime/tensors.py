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
The runtime's tensors, their memory, and the conversion of frames into tensors.

:func:`runtime_tensor` describes an input or output of the runtime. :class:`InputSlot` and
:class:`OutputSlot` are the memory for one frame. The runtime requires that a tensor begins at
offset 0 of its buffer, so each tensor has a buffer of its own: a dma-buf if there is a dma-heap,
otherwise host memory.

Compiled models can't read a frame's pixels. :class:`FrameToTensor` converts the pixels in a single
pass. The CPU reads the frame's own buffer. But the CPU reads a Jetson's NvBufSurface slowly. So
the VIC (Jetson's image converter) first scales and converts a frame in an NvBufSurface, and the
CPU only quantises the VIC's picture.

Source: Voyager SDK, *API Reference* of ``axruntime.h`` (``axrArgument``, ``axrTensorInfo``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import ctypes
from dataclasses import replace
import mmap
import threading
from typing import Any

from numpy.typing import NDArray

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.tensor import PlanesToQuantised, QuantisedTensorSpec
from zc_perception.errors import AcceleratorError, ConfigError, ZcError
from zc_perception.frame import Frame
from zc_perception.jetson.nvbufsurface import SurfaceImage
from zc_perception.jetson.vic import Vic, VicImage
from zc_perception.memory.dmabuf import BufferIdentity, BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.heaps import Heap
from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu.axruntime.library import Argument
from zc_perception.npu.manifest import ModelInput, TensorSpec
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import ImageLayout

_RGBA = fourcc_code('AB24')
_ACQUIRE_TIMEOUT_S = 1.0
_KNOWN_BUFFERS = 256
_SURFACE_EXPORTERS = ('nvmap', 'tegra-buf')
_Key = tuple[ImageLayout, Colorimetry]
Pack = Callable[[Sequence['TensorBuffer']], Any]
"""Returns the arguments of a run for the model's tensors: c_arguments() or places()."""


def runtime_tensor(
    name: str,
    shape: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dtype: str,
    scale: float,
    zero_point: int,
) -> TensorSpec:
    """
    Return the :class:`TensorSpec` of an input or output, from the runtime's values.

    :param shape: the shape in memory, with padding.
    :raises ConfigError: the padding doesn't fit the shape.
    """
    if len(padding) != len(shape):
        raise ConfigError(f"tensor '{name}' has {len(shape)} axes, but padding for {len(padding)}")
    inner = tuple(
        size - before - after for size, (before, after) in zip(shape, padding, strict=True)
    )
    if min(inner, default=1) <= 0:
        raise ConfigError(f"tensor '{name}' of shape {shape} is all padding: {padding}")
    return TensorSpec(
        name, dtype, inner, 0, (scale,), zero_point, 'nhwc' if len(shape) == 4 else '', padding
    )


def named_outputs(
    tensors: Sequence[TensorSpec], named: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...]:
    """
    Return the runtime's outputs, with the manifest's names, scales and layouts.

    If the manifest lists no outputs (*named* is empty), return *tensors* unchanged.

    :raises ConfigError: the manifest's outputs differ in number, order, shape or element type.
    """
    if not named:
        return tuple(tensors)
    if [(spec.shape, spec.dtype) for spec in named] != [
        (spec.shape, spec.dtype) for spec in tensors
    ]:
        wanted, real = (
            [(spec.name, spec.shape, spec.dtype) for spec in specs] for specs in (named, tensors)
        )
        raise ConfigError(
            f"the manifest's outputs are {wanted}, the compiled model's are {real}; correct the "
            "manifest, or leave the key 'outputs' out, because the runtime knows the outputs"
        )
    return tuple(
        replace(
            real,
            name=spec.name,
            scale=spec.scale,
            zero_point=spec.zero_point,
            layout=spec.layout or real.layout,
        )
        for real, spec in zip(tensors, named, strict=True)
    )


def quantised_spec(tensor: TensorSpec, model: ModelInput) -> QuantisedTensorSpec:
    """
    Return the parameters of the conversion of frames into *tensor*.

    Size, padding and quantisation come from the runtime, colours and letterbox from the manifest.

    :raises ConfigError: the tensor isn't one int8 NHWC picture, or its size differs from the
        manifest's, or the manifest has ``mean``, ``std`` or ``grey``.
    """
    if len(tensor.shape) != 4 or tensor.dtype != 'int8' or tensor.shape[3] not in (3, 4):
        raise ConfigError(
            f"input '{tensor.name}' is {tensor.dtype} {tensor.shape}; an input for frames must be "
            'int8, with the shape (1, H, W, 3) or (1, H, W, 4)'
        )
    if model.grey or model.mean or model.std:
        raise ConfigError(
            "the manifest's input has mean, std or grey, which compiled models don't take; give "
            'the real values for pixel values 0 and 255 in input.range instead'
        )
    batch, height, width, channels = tensor.shape
    if batch != 1 or tensor.padded_shape[0] != 1:
        raise ConfigError(
            f'the model is compiled for {batch} frames at once; deploy it again with '
            "'--aipu-cores 1' (one frame per run)"
        )
    if model.resize == 'none' or (model.width, model.height) != (width, height):
        asked = f'{model.width}x{model.height} (resize: {model.resize})'
        raise ConfigError(
            f"the manifest's input is {asked}, the compiled model's input is {width}x{height}"
        )
    return QuantisedTensorSpec(
        width=width,
        height=height,
        channels=channels,
        scale=tensor.scale[0],
        zero_point=tensor.zero_point,
        padding=(tensor.padding[1], tensor.padding[2], tensor.padding[3]),
        low=model.low,
        high=model.high,
        bgr=model.bgr,
        pad=model.pad,
    )


class TensorBuffer:
    """
    One tensor's memory.

    :param heap: the heap that the memory comes from; ``None``: host memory, in whole pages.
    :raises AllocationError: the heap has no memory left.
    """

    def __init__(self, tensor: TensorSpec, heap: Heap | None) -> None:
        self._buffer: DmaBuf | None = None
        self._pages: mmap.mmap | None = None
        if heap is not None:
            self._buffer = heap.allocate(tensor.num_bytes)
            self._buffer.set_name('zc_perception tensor')
            memory: memoryview | mmap.mmap = self._buffer.memory(write=True)
        else:
            memory = self._pages = mmap.mmap(-1, tensor.num_bytes)
        self.values: NDArray[Any] = tensor.whole(memory)
        self._size = tensor.num_bytes

    @property
    def place(self) -> int | NDArray[Any]:
        """Return the buffer as Axelera's Python package takes it: a descriptor or an array."""
        return self.values if self._buffer is None else self._buffer.fileno()

    def argument(self) -> Argument:
        """Return the buffer as the C library takes it."""
        if self._buffer is not None:
            return Argument(ptr=None, fd=self._buffer.fileno(), offset=0, size=self._size)
        return Argument(ptr=self.values.ctypes.data, fd=-1, offset=0, size=self._size)

    @contextlib.contextmanager
    def writing(self) -> Iterator[NDArray[Any]]:
        """
        Give access to the whole tensor, with padding, between DMA_BUF_IOCTL_SYNC start and end.

        :raises AcceleratorError: a device does not end its access to the buffer.
        """
        if self._buffer is None:
            yield self.values
            return
        self._buffer.begin_cpu_access(CpuAccess.WRITE)
        try:
            yield self.values
        finally:
            self._buffer.end_cpu_access(CpuAccess.WRITE)

    def begin_reading(self) -> None:
        """
        Begin the CPU's reading: DMA_BUF_IOCTL_SYNC start.

        :raises AcceleratorError: a device does not end its access to the buffer.
        """
        if self._buffer is not None:
            self._buffer.begin_cpu_access(CpuAccess.READ)

    def end_reading(self) -> None:
        """End the CPU's reading: DMA_BUF_IOCTL_SYNC end."""
        if self._buffer is not None:
            self._buffer.end_cpu_access(CpuAccess.READ)

    def close(self) -> None:
        """Release the memory; memory that a NumPy view still uses stays until the view is gone."""
        del self.values
        with contextlib.suppress(BufferError):
            if self._buffer is not None:
                self._buffer.close()
            if self._pages is not None:
                self._pages.close()


def c_arguments(buffers: Sequence[TensorBuffer]) -> ctypes.Array[Argument]:
    """Return the arguments with which the C library runs the model."""
    return (Argument * len(buffers))(*(buffer.argument() for buffer in buffers))


def places(buffers: Sequence[TensorBuffer]) -> list[int | NDArray[Any]]:
    """Return the arguments with which Axelera's Python package runs the model."""
    return [buffer.place for buffer in buffers]


class InputSlot:
    """
    The memory of one input tensor.

    ``prepared`` is the converter that wrote the bytes that all frames share, such as borders.
    """

    def __init__(self, tensor: TensorSpec, heap: Heap | None, pack: Pack) -> None:
        self.buffer = TensorBuffer(tensor, heap)
        self.arguments: Any = pack((self.buffer,))
        self.prepared: object = None
        # The number of the runtime's calls that may still read this slot.
        self.users = 0

    def close(self) -> None:
        """Release the tensor's memory."""
        self.arguments = None
        self.buffer.close()


class OutputSlot:
    """The memory of one frame's results; ``raw`` are the views of this memory for the heads."""

    def __init__(self, tensors: Sequence[TensorSpec], heap: Heap | None, pack: Pack) -> None:
        self.arguments: Any = None
        self._buffers: list[TensorBuffer] = []
        try:
            for tensor in tensors:
                self._buffers.append(TensorBuffer(tensor, heap))
        except BaseException:
            self.close()
            raise
        self.arguments = pack(self._buffers)
        self.raw = tuple(
            tensor.view(buffer.values)
            for tensor, buffer in zip(tensors, self._buffers, strict=True)
        )

    def begin_reading(self) -> None:
        """Begin the CPU's access to all tensors; if one access fails, end the earlier ones."""
        with contextlib.ExitStack() as undo:
            for buffer in self._buffers:
                buffer.begin_reading()
                undo.callback(buffer.end_reading)
            undo.pop_all()

    def end_reading(self) -> None:
        for buffer in self._buffers:
            buffer.end_reading()

    def close(self) -> None:
        """Release the memory of all tensors."""
        self.raw = ()
        self.arguments = None
        for buffer in self._buffers:
            buffer.close()


class FrameToTensor:
    """
    Convert frames into a model's input tensors; each object is used by only one thread.

    The ledger counts one pass ``tensor`` per frame.

    :param vic: the Jetson's image converter (VIC), which scales frames in NvBufSurface memory;
        ``None``: the machine has none.
    :param vic_lock: held while the VIC is used: the threads of all the accelerator's cores share
        the VIC, and only one thread at a time may use it.
    """

    def __init__(
        self,
        spec: QuantisedTensorSpec,
        *,
        stretch: bool,
        ledger: CopyLedger,
        vic: Vic | None,
        vic_lock: threading.Lock,
    ) -> None:
        self._vic_lock = vic_lock
        self._spec = spec
        self._stretch = stretch
        self._ledger = ledger
        self._vic = vic
        self._key: _Key | None = None
        self._converter: PlanesToQuantised | None = None
        self._picture: VicImage | None = None
        self._on_vic: dict[BufferIdentity, bool] = {}
        self.vic_frames = 0
        self.vic_refusal = ''

    def geometry(self, width: int, height: int) -> Letterbox:
        """Return the letterbox: how a frame of this size lies in the tensor."""
        return Letterbox.fit(
            width, height, self._spec.width, self._spec.height, stretch=self._stretch
        )

    def write(self, frame: Frame, slot: InputSlot) -> None:
        """
        Convert *frame* into the input tensor whose memory is *slot*.

        Bytes that are the same for all frames, such as borders, are written only when the slot
        gets its first frame, and when the frames' layout or colorimetry has changed.

        :raises FormatError: the frame's format or colorimetry has no conversion, or the CPU would
            have to read a frame that isn't LINEAR.
        :raises AcceleratorError: a device does not end its access to a buffer, or the frame's
            fence failed.
        """
        data = frame.data
        converter = self._converter_for((data.layout, data.colorimetry))
        with slot.buffer.writing() as values:
            tensor = values[0]
            if slot.prepared is not converter:
                converter.prepare(tensor)
                slot.prepared = converter
            if self._wants_vic(data.buffers[0]) and self._write_by_vic(frame, converter, slot):
                return
            with frame.map() as planes:
                converter.convert(planes, tensor)
                self._ledger.book('tensor', sum(plane.nbytes for plane in planes))

    def _converter_for(self, key: _Key) -> PlanesToQuantised:
        # This comparison is cheap: tuples compare members by identity first, and all slots of a
        # pool share one layout object.
        if self._converter is None or self._key != key:
            layout, colorimetry = key
            self._close_picture()
            box = self.geometry(layout.width, layout.height)
            self._converter = PlanesToQuantised(box, self._spec, layout.fourcc, colorimetry)
            self._key = key
        return self._converter

    def _wants_vic(self, buffer: DmaBuf) -> bool:
        if self._vic is None:
            return False
        known = self._on_vic.get(buffer.identity)
        if known is None:
            if len(self._on_vic) >= _KNOWN_BUFFERS:
                self._on_vic.clear()
            known = buffer.heap == 'nvbufsurface' or (
                buffer.kind is BufferKind.DMABUF and buffer.exporter() in _SURFACE_EXPORTERS
            )
            self._on_vic[buffer.identity] = known
        return known

    def _write_by_vic(self, frame: Frame, converter: PlanesToQuantised, slot: InputSlot) -> bool:
        """
        Write the tensor from a picture that the VIC scales; return whether that worked.

        After the VIC (Jetson's image converter) has failed once, it isn't used any more.
        """
        data = frame.data
        fence = data.acquire_fence
        if fence is not None:
            if not fence.wait(_ACQUIRE_TIMEOUT_S):
                raise AcceleratorError(
                    f'frame {data.sequence}: its acquire fence did not signal within '
                    f'{_ACQUIRE_TIMEOUT_S:g} s'
                )
            fence.check()
        vic = self._vic
        assert vic is not None
        try:
            with self._vic_lock:
                if self._picture is None:
                    box = self.geometry(data.width, data.height)
                    self._picture = vic.allocate(box.width, box.height, _RGBA)
                vic.transform(
                    SurfaceImage(data.buffers, data.layout, data.colorimetry), self._picture
                )
        except ZcError as error:
            self._vic = None
            self.vic_refusal = f"the CPU scales the frames, because the VIC can't: {error}"
            self._close_picture()
            return False
        with self._picture.reading() as planes:
            converter.convert_rgba(planes[0], slot.buffer.values[0])
            self._ledger.book('tensor', planes[0].nbytes)
        self.vic_frames += 1
        return True

    def _close_picture(self) -> None:
        picture, self._picture = self._picture, None
        if picture is not None:
            picture.close()

    def close(self) -> None:
        """Release the picture that the VIC (Jetson's image converter) writes into."""
        self._close_picture()
