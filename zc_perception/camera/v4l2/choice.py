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
A V4L2 camera's side of the negotiation: its formats, and the memory of its frames.

Formats are chosen with ioctls that change nothing, so ``zc_doctor`` can make the same choice in
advance.

The second half of this file makes the memory of the frames. This is either the driver's memory,
which is exported once per buffer, or a heap's memory, which the driver imports. Sources: the
kernel's *Streaming I/O (Memory Mapping)*, *Streaming I/O (DMA buffer importing)*, *VIDIOC_EXPBUF*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
import errno
import os
from typing import ClassVar

from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2.device import V4l2Device, V4l2Error
from zc_perception.camera.v4l2.formats import (
    driver_layout,
    DriverFormat,
    format_offers,
    FormatOffer,
    JPEGS,
    one_placement,
)
from zc_perception.camera.v4l2.kind import MOST_BUFFERS
from zc_perception.camera.v4l2.mjpeg import missing_library, SLOTS
from zc_perception.errors import (
    AllocationError,
    CameraBusyError,
    CameraError,
    CameraLostError,
    ConfigError,
    FormatError,
    LayoutError,
    nearest,
)
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.heaps import heap_order, HeapUse, OfferedHeaps, working_heaps
from zc_perception.memory.pool import Buffers, close_buffers
from zc_perception.negotiation.constraints import (
    BufferConstraints,
    Format,
    Placement,
    Size,
    size_text,
)
from zc_perception.pixel.fourcc import fourcc_name, NV12
from zc_perception.pixel.modifier import LINEAR

# The cost, in the negotiation, of a format that is decoded from JPEGs. It is larger than all
# differences between the costs of other formats, so JPEGs are chosen last: decoding takes more CPU
# time than reading any other format.
_DECODING_COST = 1000.0
# A camera's rate counts as the wanted rate if it reaches this share of the wanted rate: 29.97
# counts as 30.
_NEAR = 0.99


@dataclass(frozen=True)
class FormatChoice:
    """
    All formats that a device has in the chosen size.

    :param offers: formats that need no decoding, the best first. Empty: only JPEGs are possible.
    :param placement: whether planes share one buffer, or each plane has its own; ``None``: both
        are possible.
    :param jpeg: V4L2's fourcc of JPEGs, which are decoded to NV12; ``None``: there are none, or
        they aren't needed.
    :param passed_over: why other formats are left out, for the log.
    :param notices: warnings for the log about software that is missing on this machine.
    """

    offers: tuple[FormatOffer, ...]
    placement: Placement | None
    size: Size
    jpeg: int | None = None
    passed_over: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def first_code(self) -> int:
        """V4L2's fourcc of the best format; the device is set to it until negotiation ends."""
        best = self.offers[0].codes[0] if self.offers else self.jpeg
        assert best is not None, 'a choice has a format'
        return best

    def constraints(
        self, heaps: tuple[str, ...], reserve: int, why: str = '', decoded: tuple[str, ...] = ()
    ) -> BufferConstraints:
        """
        Return the camera's side of the negotiation.

        The constraints allow only the size to which the driver is set, but any stride and offset,
        because the driver decides them.

        :param heaps: heaps for the driver's buffers, the best first.
        :param reserve: how many slots the driver holds, from
            :func:`~zc_perception.camera.v4l2.kind.reserve_of`.
        :param why: why the buffers can't come from other heaps.
        :param decoded: heaps for frames that are decoded from JPEGs.
        """
        formats = tuple(offer.format for offer in self.offers)
        costs = tuple(map(float, range(len(formats))))
        elsewhere: tuple[tuple[Format, tuple[str, ...]], ...] = ()
        if self.jpeg is not None:
            made = (NV12, LINEAR)
            formats, costs, elsewhere = (
                (*formats, made),
                (*costs, _DECODING_COST),
                ((made, decoded),),
            )
        return BufferConstraints(
            'v4l2 camera',
            formats=formats,
            costs=costs,
            heaps=heaps if self.offers else decoded,
            format_heaps=elsewhere,
            memory_note=why,
            slots=max(reserve if self.offers else 0, SLOTS if self.jpeg is not None else 0),
            max_slots=MOST_BUFFERS,
            min_size=self.size,
            max_size=self.size,
            placement=self.placement,
        )

    def code(self, wanted: Format, placement: Placement | None) -> int | None:
        """
        Return V4L2's fourcc for a negotiated format; ``None``: the device doesn't have the format.

        The result is the JPEGs' fourcc if NV12 is decoded from JPEGs.
        """
        offer = next((offer for offer in self.offers if offer.format == wanted), None)
        if offer is not None:
            return offer.code(placement)
        return self.jpeg if wanted == (NV12, LINEAR) else None

    def describe(self, code: int) -> str:
        """
        Return a line for the log, about V4L2's format *code*, which was chosen.

        It says whether the CPU has to decode the frames, and why other formats weren't chosen.
        """
        name = fourcc_name(code).strip()
        if code in JPEGS:
            others = ', '.join(fourcc_name(offer.codes[0]) for offer in self.offers)
            passed = (
                (*self.passed_over, f'not every consumer accepts {others}')
                if others
                else self.passed_over
            )
            text = (
                f'{name}, which the CPU decodes to NV12, about 3 to 6 ns for each pixel '
                '(counted as decode in the copy ledger)'
            )
        else:
            passed = (
                self.passed_over
                if self.jpeg is None
                else (*self.passed_over, f'{fourcc_name(self.jpeg)} would have to be decoded')
            )
            text = f'{name}, without conversion'
        return f'{text}: {"; ".join(passed)}' if passed else text


def aligned_format(
    ask: Callable[..., DriverFormat], code: int, size: Size, align: int
) -> DriverFormat:
    """
    Ask for strides that are a multiple of *align* bytes; return the driver's answer.

    The wanted strides are those that the driver chose itself, rounded up to multiples of *align*.
    The driver may answer with other strides.

    :param ask: :meth:`V4l2Device.set_format`, or :meth:`V4l2Device.try_format`, which changes
        nothing.
    """
    driver = ask(code, *size)
    if any(plane.stride % align for plane in driver.planes):
        driver = ask(code, *size, [-(-plane.stride // align) * align for plane in driver.planes])
    return driver


def choose_formats(
    device: V4l2Device, width: int, height: int, pixel_format: str, framerate: float = 0.0
) -> FormatChoice:
    """
    Return the formats of a device in the wanted size and rate, without changing the device.

    Formats that need no decoding come first. JPEGs are decoded only if no other format has the
    size and the rate, or if a consumer accepts none of the other formats.

    :param width: in pixels; 0: the width to which the device is set.
    :param height: in pixels; 0: the height to which the device is set.
    :param pixel_format: V4L2's fourcc such as ``NM12``; ``auto``: all formats, NV12 first.
    :param framerate: in Hz; 0: any rate.
    :raises CameraError: the device has no such format, size or rate. The message lists those that
        it has.
    :raises ConfigError: only JPEGs are possible, and the library to decode them is not installed.
    """
    current = device.get_format()
    codes = [
        code
        for code in device.fourccs() or [current.fourcc]
        if pixel_format in ('auto', fourcc_name(code))
    ]
    offers, refused = format_offers(code for code in codes if code not in JPEGS)
    jpegs = [code for code in codes if code in JPEGS]
    if not offers and not jpegs:
        raise CameraError(_no_format(device, pixel_format, refused))
    size = (width or current.width, height or current.height)
    found = _usable(device, offers, jpegs, size)
    if not found.any and not (width and height):
        size = found.nearest
        found = _usable(device, offers, jpegs, size)
    if not found.any:
        hint = (
            found.misses[0]
            if found.nearest == size
            else f'the nearest is {size_text(found.nearest)}: set width and height'
        )
        raise CameraError(
            f"'{device.path}' can't do {size_text(size)}; {hint}; it offers "
            f'{_offered(device, offers, jpegs)}'
        )
    good, jpeg, passed_over = _fast_enough(device, found, size, framerate)
    notices: tuple[str, ...] = ()
    if jpeg is not None and (missing := missing_library()):
        if not found.offers:
            raise ConfigError(
                f"'{device.path}' ({device.card}) offers nothing but JPEGs in "
                f'{size_text(size)}: {missing}'
            )
        good, _, passed_over = _fast_enough(device, replace(found, jpeg=None), size, framerate)
        jpeg, notices = None, (f"JPEGs of '{device.path}' are not used: {missing}",)
    placement, good = one_placement(good)
    return FormatChoice(good, placement, size, jpeg, passed_over, notices)


def _fast_enough(
    device: V4l2Device, found: _Usable, size: Size, framerate: float
) -> tuple[tuple[FormatOffer, ...], int | None, tuple[str, ...]]:
    """
    Return the formats that come nearest to the wanted rate, a JPEG fourcc, and reasons.

    The reasons say why other formats are left out. The JPEG fourcc is ``None`` if the device has
    no JPEGs, if they come more slowly than these formats, or if one of these formats is NV12.
    """

    def reached(codes: Iterable[int]) -> float:
        return max(min(framerate, _most_hz(device, code, size)) for code in codes)

    rates = {offer: reached(offer.codes) for offer in found.offers}
    jpeg_rate = reached([found.jpeg]) if found.jpeg is not None else 0.0
    enough = _NEAR * max([*rates.values(), jpeg_rate])
    good = tuple(offer for offer in found.offers if rates[offer] >= enough)
    slow = tuple(
        f'{fourcc_name(offer.codes[0])} does {rates[offer]:g} Hz at this size'
        for offer in found.offers
        if offer not in good
    )
    has_nv12 = any(offer.format == (NV12, LINEAR) for offer in good)
    return good, None if has_nv12 or jpeg_rate < enough else found.jpeg, slow


def _most_hz(device: V4l2Device, code: int, size: Size) -> float:
    """Return the highest rate of a format in *size*; infinite if the driver lists no rates."""
    try:
        return max((rate.most for rate in device.frame_rates(code, *size)), default=float('inf'))
    except V4l2Error:
        return float('inf')


@dataclass(frozen=True)
class _Usable:
    """
    The formats that the driver accepts in the wanted size.

    :param misses: why the other formats can't be used.
    :param nearest: the size that the driver offered for the best format, when it was asked for
        the wanted size.
    """

    offers: tuple[FormatOffer, ...]
    jpeg: int | None
    misses: tuple[str, ...]
    nearest: Size

    @property
    def any(self) -> bool:  # noqa: A003
        """Whether there is at least one format."""
        return bool(self.offers) or self.jpeg is not None


def _usable(
    device: V4l2Device, offers: tuple[FormatOffer, ...], jpegs: Iterable[int], size: Size
) -> _Usable:
    misses: list[str] = []
    sizes: list[Size] = []

    def does(code: int) -> bool:
        try:
            answer = device.try_format(code, *size)
            sizes.append(answer.size)
            if answer.fourcc != code or answer.size != size:
                return False
            if code not in JPEGS:
                driver_layout(answer)
        except (V4l2Error, LayoutError, FormatError) as error:
            misses.append(f'{fourcc_name(code)}: {error}')
            return False
        return True

    good, _ = format_offers([code for offer in offers for code in offer.codes if does(code)])
    jpeg = next((code for code in jpegs if does(code)), None)
    return _Usable(
        good, jpeg, tuple(misses) or ('no format has this size',), sizes[0] if sizes else size
    )


def _no_format(device: V4l2Device, wanted: str, refused: Mapping[str, str]) -> str:
    names = [fourcc_name(code) for code in device.fourccs()]
    if wanted == 'auto':
        what, next_step = 'has no pixel format that can be used', '; '.join(refused.values())
    else:
        what = f"has no pixel format '{wanted}'"
        next_step = f"set parameter 'pixel_format'{nearest(wanted, ['auto', *names])}"
    offered = ', '.join(names) or 'none'
    return f"'{device.path}' ({device.card}) {what}; it offers {offered}; {next_step}"


def _offered(device: V4l2Device, offers: tuple[FormatOffer, ...], jpegs: Iterable[int]) -> str:
    """Return a text with the best format and all its sizes, and the other formats' names."""
    best, *others = [*(code for offer in offers for code in offer.codes), *jpegs]
    sizes = ', '.join(map(str, device.frame_sizes(best))) or 'sizes that its driver does not list'
    names = ', '.join(map(fourcc_name, others))
    return f'{fourcc_name(best)} in {sizes}' + (f'; also {names}' if names else '')


EXPORTED = "the driver's own buffers are used"
# The number of frames in the trial that shows whether a driver imports scattered pages. One frame
# isn't enough, because its pages may be contiguous by chance.
_TRIALS = 4


class FrameMemory(ABC):
    """
    Makes the buffers of a camera's frames.

    This object owns each buffer until :meth:`take` returns it. Only the camera's thread uses and
    closes this object.
    """

    kind: ClassVar[str]
    memory: ClassVar[int]
    """V4L2's number of this memory type (MEMORY_*), which each ioctl for buffers needs."""

    def __init__(self, device: V4l2Device) -> None:
        self._device = device
        self._made: list[Buffers] = []
        self.notes: list[str] = []

    @property
    @abstractmethod
    def heap_names(self) -> tuple[str, ...]:
        """The heaps that the buffers may come from, the best first, for the negotiation."""

    @property
    def heap_name(self) -> str:
        """The heap that the buffers come from, for diagnostics."""
        return self.heap_names[0]

    @property
    @abstractmethod
    def heap_reasons(self) -> tuple[str, ...]:
        """The reasons why other heaps can't be used, for the negotiation's messages."""

    @abstractmethod
    def choose(self, heap: str) -> None:
        """
        Choose one of :attr:`heap_names` for the buffers.

        :raises AllocationError: the heap can't be opened any more.
        """

    def allocate(self, count: int, driver: DriverFormat) -> int:
        """Make buffers for *count* frames or as many as the driver allows; return how many."""
        made, _ = self._device.request_buffers(min(count, MOST_BUFFERS), self.memory)
        self._make(min(made, MOST_BUFFERS), driver)
        return len(self._made)

    @abstractmethod
    def _make(self, count: int, driver: DriverFormat) -> None:
        """Make buffers for *count* frames, in the order of the driver's indexes from 0."""

    @abstractmethod
    def take(self) -> Buffers:
        """
        Return the next frame's buffers; the pool calls this as its allocator.

        :raises AllocationError: no buffer is left, and none can be made.
        """

    @abstractmethod
    def begin_trial(self) -> None:
        """
        Make sure that the buffers of slot 0 are queued; other slots may be queued, too.

        The caller then queries where the data begins in these buffers, and takes them back from
        the driver.
        """

    def close(self) -> None:
        """Free the buffers that :meth:`take` didn't return. Idempotent."""
        while self._made:
            close_buffers(self._made.pop())


class ExportedMemory(FrameMemory):
    """
    The driver's own buffers, which are exported without a copy.

    If the driver supports read-only export, consumers can read these buffers, but not write them.
    """

    kind = 'export'
    memory = abi.MEMORY_MMAP

    def __init__(self, device: V4l2Device) -> None:
        super().__init__(device)
        self._access = os.O_RDONLY
        made, _ = device.request_buffers(1, self.memory)
        try:
            if not made:
                raise CameraError(f"'{device.path}': the driver made no buffer")
            close_buffers([self._export(0, 0)])
        finally:
            device.request_buffers(0, self.memory)

    @property
    def heap_names(self) -> tuple[str, ...]:
        return (f'v4l2/{self._device.driver}',)

    @property
    def heap_reasons(self) -> tuple[str, ...]:
        return (EXPORTED,)

    def choose(self, heap: str) -> None:
        """Do nothing, because the driver's memory is the only heap."""

    def _export(self, index: int, plane: int) -> DmaBuf:
        try:
            fd = self._device.export_buffer(index, plane, self._access)
        except V4l2Error as error:
            if error.number not in (errno.EINVAL, errno.EACCES) or self._access == os.O_RDWR:
                raise
            fd = self._device.export_buffer(index, plane, os.O_RDWR)
            self._access = os.O_RDWR
            self.notes.append(
                'the driver can not export its buffers read-only: every process that gets '
                'frames could change them, and is trusted not to do so'
            )
        return DmaBuf(fd, BufferKind.DMABUF, self.heap_name)

    def _make(self, count: int, driver: DriverFormat) -> None:
        for index in range(count):
            planes: list[DmaBuf] = []
            try:
                planes.extend(self._export(index, plane) for plane in range(len(driver.planes)))
            finally:
                self._made.append(tuple(planes))

    def begin_trial(self) -> None:
        self._device.queue(0, self.memory, self._made[0])

    def take(self) -> Buffers:
        if not self._made:
            # REQBUFS can't add a buffer while streaming. After this error, the pool goes on with
            # the other buffers.
            raise AllocationError(
                f"'{self._device.path}': a V4L2 buffer can't be replaced while streaming"
            )
        return self._made.pop(0)


class ImportedMemory(FrameMemory):
    """
    Buffers that are allocated from a heap, and imported by the driver.

    While streaming, a retired slot can get new buffers; with :class:`ExportedMemory` it can't.

    :param heaps: the heaps to try. This object owns them and closes them, even if the constructor
        raises. Heaps whose buffers the driver can't import are removed.
    :raises CameraError: the driver can't import buffers of any heap.
    """

    kind = 'import'
    memory = abi.MEMORY_DMABUF

    def __init__(self, device: V4l2Device, heaps: OfferedHeaps, driver: DriverFormat) -> None:
        super().__init__(device)
        self._heaps = heaps
        self._sizes: tuple[int, ...] = ()
        try:
            self._try_all(driver)
        except BaseException:
            self.close()
            raise

    @property
    def heap_names(self) -> tuple[str, ...]:
        return self._heaps.names

    @property
    def heap_name(self) -> str:
        return self._heaps.name

    @property
    def heap_reasons(self) -> tuple[str, ...]:
        return self._heaps.reasons

    def choose(self, heap: str) -> None:
        self._heaps.choose(heap)

    def _try_all(self, driver: DriverFormat) -> None:
        """Remove the heaps whose buffers the driver refuses, and choose the first other heap."""
        good: list[str] = []
        reasons: list[str] = []
        for name in self._heaps.names:
            try:
                self._heaps.choose(name)
                self._try(driver)
            except (CameraBusyError, CameraLostError):
                raise
            except (CameraError, AllocationError) as error:
                reasons.append(f'{name}: {error}')
                self._heaps.remove(name, reasons[-1])
                continue
            if not good:
                self.notes += reasons
            good.append(name)
        if not good:
            raise CameraError(
                f"'{self._device.path}' ({self._device.card}) can't import buffers of any heap: "
                f'{"; ".join(reasons)}; set the parameter memory to export'
            )
        self._heaps.choose(good[0])

    def _try(self, driver: DriverFormat) -> None:
        """Let the driver import some buffers; raise CameraError if it refuses one."""
        made, capabilities = self._device.request_buffers(_TRIALS, self.memory)
        try:
            if not made or (capabilities and not capabilities & abi.BUF_CAP_SUPPORTS_DMABUF):
                raise CameraError(f"'{self._device.path}': the driver imports no dma-bufs")
            self._make(min(made, MOST_BUFFERS), driver)
        finally:
            # A request for 0 buffers also takes the queued buffers back from the driver.
            self._device.request_buffers(0, self.memory)
            super().close()

    def _make(self, count: int, driver: DriverFormat) -> None:
        """
        Make the buffers, and queue them at once.

        A driver that can't use a buffer with scattered pages refuses it only when it is queued.
        """
        self._sizes = tuple(plane.size for plane in driver.planes)
        for index in range(count):
            self._made.append(self._frame())
            self._device.queue(index, self.memory, self._made[-1])

    def _frame(self) -> Buffers:
        buffers: list[DmaBuf] = []
        try:
            buffers.extend(map(self._heaps.allocate, self._sizes))
        except BaseException:
            close_buffers(buffers)
            raise
        return tuple(buffers)

    def begin_trial(self) -> None:
        """Do nothing, because all buffers are queued already."""

    def take(self) -> Buffers:
        return self._made.pop(0) if self._made else self._frame()

    def close(self) -> None:
        super().close()
        self._heaps.close()


def frame_memory(device: V4l2Device, mode: str, heap: str, driver: DriverFormat) -> FrameMemory:
    """
    Return frame memory of the first allowed kind that works in a trial with a buffer.

    :param mode: ``export``, ``import``, or ``auto``: import only if export isn't possible; the
        ``notes`` of the returned memory then give the reason.
    :param heap: for import: ``auto`` or the name of a heap.
    :raises ConfigError: there is no such heap.
    :raises CameraBusyError: another program streams.
    :raises CameraError: no allowed kind works; the message gives the reason for each kind.
    """
    if mode == 'import':
        return _imported(device, heap, driver)
    try:
        return ExportedMemory(device)
    except (CameraBusyError, CameraLostError):
        raise
    except CameraError as error:
        if mode == 'export':
            raise CameraError(
                f"{error}; the driver can't export its buffers; set parameter 'memory' to import"
            ) from error
        reason = f"the driver's own buffers are not used: {error}"
        try:
            memory = _imported(device, heap, driver)
        except (CameraBusyError, CameraLostError):
            raise
        except CameraError as other:
            raise CameraError(f'{reason}; {other}') from other
        memory.notes.insert(0, reason)
        return memory


def _imported(device: V4l2Device, heap: str, driver: DriverFormat) -> ImportedMemory:
    """Return buffers that the driver can import; don't try memfd, which no device imports."""
    try:
        heaps = working_heaps(heap, heap_order(HeapUse.CAMERA_IMPORT))
    except AllocationError as error:
        raise CameraError(
            f"'{device.path}' ({device.card}) can't import buffers of any heap: {error}; "
            'set the parameter memory to export'
        ) from error
    return ImportedMemory(device, heaps, driver)
