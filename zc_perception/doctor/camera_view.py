"""What a V4L2 node offers: asked with ioctls that change nothing, of a node that is opened without waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2.device import V4l2Device
from zc_perception.camera.v4l2.file import DeviceFile, V4l2Error, call
from zc_perception.camera.v4l2.formats import JPEGS, RateRange, SizeRange, format_offers
from zc_perception.errors import CameraBusyError, CameraError
from zc_perception.pixel.fourcc import fourcc_name

# Some drivers list a hundred formats: rates are asked of the best ones, for so many sizes.
_RATED_FORMATS, _RATED_SIZES = 8, 64
_TURN = threading.Lock()
_TURN_S = 5.0


@dataclass(frozen=True)
class FormatView:
    """One of V4L2's formats, with its sizes, and the rates of each: none where they weren't asked for."""

    name: str
    code: int
    sizes: tuple[SizeRange, ...] = ()
    rates: dict[str, tuple[RateRange, ...]] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """For the report."""
        return {
            'fourcc': self.name,
            'sizes': [str(size) for size in self.sizes],
            'rates': {size: [str(rate) for rate in rates] for size, rates in self.rates.items()},
        }


@dataclass(frozen=True)
class CameraView:
    """A node, opened.

    :param role: ``capture``, ``metadata`` or ``other``.
    :param busy: whether another open file streams from it.
    :param dmabuf: whether it takes buffers of ours (``memory: import``); ``None``: it doesn't say.
    """

    driver: str
    card: str
    bus: str
    role: str
    multiplanar: bool = False
    current: str = ''
    formats: tuple[FormatView, ...] = ()
    busy: bool = False
    dmabuf: bool | None = None


@contextmanager
def taking_turns() -> Iterator[None]:
    """To open a V4L2 node in: checks run side by side, and some drivers let one file have the node at a time.

    Whoever hangs in a driver doesn't keep the others from theirs: they go on after a while.
    """
    mine = _TURN.acquire(timeout=_TURN_S)
    try:
        yield
    finally:
        if mine:
            _TURN.release()


def _text(raw: bytes) -> str:
    return raw.decode(errors='replace')


def look_at(file: DeviceFile, wanted: str = '') -> CameraView:
    """Ask it everything. Owns *file*.

    :param wanted: a format whose rates matter, whatever there is besides.
    :raises CameraError: it is gone, or no V4L2 node.
    """
    capability = abi.Capability()
    try:
        call(file, 'QUERYCAP', abi.VIDIOC_QUERYCAP, capability)
        flags = capability.device_caps if capability.capabilities & abi.CAP_DEVICE_CAPS else capability.capabilities
        names = _text(capability.driver), _text(capability.card), _text(capability.bus_info)
        if not flags & (abi.CAP_VIDEO_CAPTURE | abi.CAP_VIDEO_CAPTURE_MPLANE) or not flags & abi.CAP_STREAMING:
            return CameraView(*names, 'metadata' if flags & abi.CAP_META_CAPTURE else 'other')
        device = V4l2Device(file)
        busy, dmabuf = _buffers(device)
        current = ''
        with suppress(CameraError):
            now = device.get_format()
            current = f'{fourcc_name(now.fourcc)} {now.width}x{now.height}'
        codes = device.fourccs()
        best = [code for offer in format_offers(codes)[0] for code in offer.codes]
        rated = {*best[:_RATED_FORMATS], *(code for code in codes if code in JPEGS or fourcc_name(code) == wanted)}
        formats = tuple(_format(device, code, rated=code in rated) for code in codes)
        return CameraView(*names, 'capture', device.multiplanar, current, formats, busy, dmabuf)
    finally:
        file.close()


def _buffers(device: V4l2Device) -> tuple[bool, bool | None]:
    """Asking for no buffers changes nothing, is refused while another file has some, and tells which kinds there are."""
    try:
        _, kinds = device.request_buffers(0, abi.MEMORY_MMAP)
    except CameraBusyError:
        return True, None
    except CameraError:
        return False, None
    return False, bool(kinds & abi.BUF_CAP_SUPPORTS_DMABUF) if kinds else None


def _format(device: V4l2Device, code: int, *, rated: bool) -> FormatView:
    sizes: tuple[SizeRange, ...] = ()
    rates: dict[str, tuple[RateRange, ...]] = {}
    with suppress(V4l2Error):
        sizes = tuple(device.frame_sizes(code))
    for size in sizes[:_RATED_SIZES] if rated else ():
        with suppress(V4l2Error):
            rates[str(size)] = tuple(device.frame_rates(code, *size.most))
    return FormatView(fourcc_name(code), code, sizes, rates)


def offers_size(view: FormatView, width: int, height: int) -> bool:
    """Whether a format has that size; yes where the driver doesn't list sizes."""
    return not view.sizes or any(_within(size, width, height) for size in view.sizes)


def _within(size: SizeRange, width: int, height: int) -> bool:
    for value, least, most, step in (
        (width, size.least[0], size.most[0], size.step[0]),
        (height, size.least[1], size.most[1], size.step[1]),
    ):
        if not least <= value <= most or (step > 1 and (value - least) % step):
            return False
    return True
