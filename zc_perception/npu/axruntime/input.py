"""A camera's frame to the tensor that the runtime reads: the one pass over the pixels that the shipped models need.

On the CPU, from the frame's own buffer. Where the frame is an NvBufSurface of a Jetson, whose memory the CPU reads slowly, the VIC scales
and converts it first, and the CPU only quantises.
"""

from __future__ import annotations

from typing import Protocol

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.quantised_tensor import PlanesToQuantised, QuantisedTensorSpec
from zc_perception.errors import AcceleratorError, ZcError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import BufferIdentity, BufferKind, DmaBuf
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.vic import Vic, VicImage
from zc_perception.memory.vic_surfaces import SurfaceImage
from zc_perception.npu.axruntime.tensors import InputSlot
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import ImageLayout

_RGBA = fourcc_code('AB24')
_ACQUIRE_TIMEOUT_S = 1.0
_KNOWN_BUFFERS = 256
_SURFACE_EXPORTERS = ('nvmap', 'tegra-buf')

_Key = tuple[ImageLayout, Colorimetry]


class FrameWriter(Protocol):
    """What fills a slot from a frame."""

    def geometry(self, width: int, height: int) -> Letterbox:
        """Between a frame of that size and the tensor."""

    def write(self, frame: Frame, slot: InputSlot) -> None:
        """Fill it. Blocking; one thread."""


class FrameToTensor:
    """Fills input slots, and books one ``tensor`` pass for each frame.

    :param vic: scales frames in NvBufSurface memory; ``None`` where there is none.
    """

    def __init__(self, spec: QuantisedTensorSpec, *, stretch: bool, ledger: CopyLedger, vic: Vic | None) -> None:
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
        """Between a frame of that size and the tensor."""
        return Letterbox.fit(width, height, self._spec.width, self._spec.height, stretch=self._stretch)

    def write(self, frame: Frame, slot: InputSlot) -> None:
        """Fill *slot*: every byte that depends on the frame once, what never changes once per slot and geometry.

        :raises FormatError: a format or a colorimetry without a conversion, or the CPU has to read it, and it isn't LINEAR.
        :raises AcceleratorError: a device doesn't finish with a buffer, or the frame's fence failed.
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
        # A tuple compares its members by identity first, and the layout of a pool's slots is one object.
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
            known = buffer.heap == 'nvbufsurface' or (buffer.kind is BufferKind.DMABUF and buffer.exporter() in _SURFACE_EXPORTERS)
            self._on_vic[buffer.identity] = known
        return known

    def _write_by_vic(self, frame: Frame, converter: PlanesToQuantised, slot: InputSlot) -> bool:
        """Whether the VIC did it. When it refuses once, it isn't asked again."""
        data = frame.data
        fence = data.acquire_fence
        if fence is not None:
            if not fence.wait(_ACQUIRE_TIMEOUT_S):
                raise AcceleratorError(f'frame {data.sequence}: its acquire fence did not signal within {_ACQUIRE_TIMEOUT_S:g} s')
            fence.check()
        vic = self._vic
        assert vic is not None
        try:
            if self._picture is None:
                box = self.geometry(data.width, data.height)
                self._picture = vic.allocate(box.width, box.height, _RGBA)
            vic.transform(SurfaceImage(data.buffers, data.layout, data.colorimetry), self._picture)
        except ZcError as error:
            self._vic = None
            self.vic_refusal = f'the VIC does not scale the frames, the CPU does: {error}'
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
        """Give the VIC's picture back."""
        self._close_picture()
