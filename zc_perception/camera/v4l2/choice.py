"""What a V4L2 camera takes part in a negotiation with.

Asked of the device by ioctls that change nothing: ``zc_doctor`` asks the same before any drive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zc_perception.camera.v4l2.device import V4l2Device
from zc_perception.camera.v4l2.file import V4l2Error
from zc_perception.camera.v4l2.formats import DriverFormat, FormatOffer, driver_layout, format_offers, one_placement
from zc_perception.errors import CameraError, FormatError, LayoutError
from zc_perception.negotiation.constraints import BufferConstraints, Format, Placement, Size, size_text
from zc_perception.pixel.fourcc import fourcc_name

QUEUED = 3
"""What the driver needs queued so that it never has nowhere to write, plus one that is being handed over."""
_MOST_BUFFERS = 32


@dataclass(frozen=True)
class FormatChoice:
    """All formats that a device has in the one size.

    :param offers: the best first; at least one.
    :param placement: that of their planes; ``None``: either.
    """

    offers: tuple[FormatOffer, ...]
    placement: Placement | None
    size: Size

    def constraints(self, heap: str, reserve: int) -> BufferConstraints:
        """The camera's side of the negotiation. The driver decides stride and offsets, for the one size that it is set to.

        :param reserve: see :func:`reserve_of`.
        """
        return BufferConstraints(
            'v4l2 camera',
            formats=tuple(offer.format for offer in self.offers),
            heaps=(heap,),
            slots=reserve,
            max_slots=_MOST_BUFFERS,
            min_size=self.size,
            max_size=self.size,
            placement=self.placement,
        )

    def code(self, wanted: Format, placement: Placement | None) -> int | None:
        """V4L2's fourcc for a format that was agreed on; ``None``: it isn't one of these."""
        offer = next((offer for offer in self.offers if offer.format == wanted), None)
        return None if offer is None else offer.code(placement)


def reserve_of(minimum: int) -> int:
    """Slots that the driver holds.

    :param minimum: how many it says that it needs queued; 0: it says nothing.
    """
    return max(QUEUED, minimum + 1)


def aligned_format(ask: Callable[..., DriverFormat], code: int, size: Size, align: int) -> DriverFormat:
    """The driver's own strides, or longer ones where those aren't a multiple of *align* bytes; it may have its own mind.

    :param ask: :meth:`V4l2Device.set_format`, or :meth:`V4l2Device.try_format`, which changes nothing.
    """
    driver = ask(code, *size)
    if any(plane.stride % align for plane in driver.planes):
        driver = ask(code, *size, [-(-plane.stride // align) * align for plane in driver.planes])
    return driver


def choose_formats(device: V4l2Device, width: int, height: int, pixel_format: str) -> FormatChoice:
    """What a device has in the size that is wanted; nothing in it changes.

    :param width: in pixels; 0 for what the device is set to.
    :param height: likewise.
    :param pixel_format: V4L2's fourcc such as ``NM12``; ``auto``: all that it has, NV12 first.
    :raises CameraError: it can't do that. The message lists what it can.
    """
    codes = device.fourccs()
    current = device.get_format()
    offers, refused = format_offers(codes or [current.fourcc])
    if pixel_format != 'auto':
        named = [o for o in offers if pixel_format in map(fourcc_name, o.codes)]
        offers = tuple(FormatOffer(o.fourcc, o.modifier, *_only(o, pixel_format)) for o in named)
    if not offers:
        raise CameraError(_no_format(device, pixel_format, refused))
    size = (width or current.width, height or current.height)
    good, misses, nearest = _usable(device, offers, size)
    if not good and not (width and height):
        size = nearest
        good, misses, _ = _usable(device, offers, size)
    if not good:
        hint = misses[0] if nearest == size else f'the nearest is {size_text(nearest)}: set width and height'
        raise CameraError(f"'{device.path}' can't do {size_text(size)}; {hint}; it offers {_offered(device, offers)}")
    placement, good = one_placement(good)
    return FormatChoice(good, placement, size)


def _only(offer: FormatOffer, name: str) -> tuple[int | None, int | None]:
    """The offer's two ways, without the one of another name."""
    one, per_plane = (code if code is not None and fourcc_name(code) == name else None for code in (offer.one_buffer, offer.per_plane))
    return one, per_plane


def _usable(device: V4l2Device, offers: tuple[FormatOffer, ...], size: Size) -> tuple[tuple[FormatOffer, ...], list[str], Size]:
    """Those that the driver really does in *size*, why others aren't, and the nearest size of the best one."""
    good, misses, nearest = [], [], size
    for place, offer in enumerate(offers):
        ways: list[int | None] = []
        for code in (offer.one_buffer, offer.per_plane):
            way = None
            try:
                answer = None if code is None else device.try_format(code, *size)
                if answer is not None and place == 0 and answer.size != size:
                    nearest = answer.size
                if answer is not None and answer.fourcc == code and answer.size == size:
                    driver_layout(answer)
                    way = code
            except (V4l2Error, LayoutError, FormatError) as error:
                misses.append(f'{fourcc_name(code or 0)}: {error}')
            ways.append(way)
        if any(way is not None for way in ways):
            good.append(FormatOffer(offer.fourcc, offer.modifier, *ways))
    return tuple(good), misses or ['no format has this size'], nearest


def _no_format(device: V4l2Device, wanted: str, refused: Mapping[str, str]) -> str:
    what = 'has no pixel format that can be used' if wanted == 'auto' else f"has no pixel format '{wanted}'"
    codes = ', '.join(map(fourcc_name, device.fourccs())) or 'none'
    reasons = '; '.join(refused.values()) if wanted == 'auto' else "set parameter 'pixel_format'"
    return f"'{device.path}' ({device.card}) {what}; it offers {codes}; {reasons}"


def _offered(device: V4l2Device, offers: tuple[FormatOffer, ...]) -> str:
    """Formats and sizes, those of the best format in full."""
    best = offers[0].codes[0]
    sizes = ', '.join(map(str, device.frame_sizes(best))) or 'sizes that its driver does not list'
    names = ', '.join(fourcc_name(code) for offer in offers for code in offer.codes if code != best)
    return f'{fourcc_name(best)} in {sizes}' + (f'; also {names}' if names else '')
