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
The base classes of cameras.

:class:`Camera` is the base class of every camera, and :class:`DrawnCamera` that of cameras whose
frames the CPU writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
import os
import threading
import time
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.clock import CaptureClock, StampClock
from zc_perception.errors import CameraError, ConfigError, nearest
from zc_perception.frame import Frame, Header
from zc_perception.machine.checks import Check, Finding, Needs, NodeNeed, ok, skip
from zc_perception.machine.system import auto_heaps, System
from zc_perception.mapping import map_buffers
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.heaps import check_heap_name, Heap, HeapUse, OfferedHeaps, working_heaps
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool, mapped, PoolStatistics, Slot
from zc_perception.negotiation.constraints import BufferConstraints, Size
from zc_perception.negotiation.settings import AllocationRequest, BufferSettings
from zc_perception.parameters import ParameterSpec
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR

UNKNOWN = (0, 0)
"""Stands for a picture size that isn't known, for example before the camera streams."""


@dataclass(frozen=True)
class Known:
    """
    The facts about a camera's frames that are known before it streams.

    :param constraints: the camera's own constraints.
    :param memory: whether the buffers' heap is known; if not, the negotiation ignores
        consumers' heaps.
    :param formats: whether the frames' format is known; if not, the negotiation ignores consumers'
        formats.
    """

    constraints: BufferConstraints
    size: Size
    memory: bool
    formats: bool = True


Agree = Callable[[Known], BufferSettings]
"""A function that negotiates a camera's buffers, or raises NegotiationError."""


@dataclass(frozen=True)
class PlannedPool:
    """
    The pool that a camera will have; ``zc_doctor`` computes it without a camera.

    :param settings: the negotiated settings; their layout is the frames' layout.
    :param buffers: the size in bytes of each buffer of one slot.
    :param heap: the heap that the buffers come from; empty: another owner, such as a driver,
        allocates them.
    """

    settings: BufferSettings
    buffers: Sequence[int]
    heap: str = ''


def offered_heaps(system: System, heap: str, use: HeapUse) -> OfferedHeaps:
    """Return the heaps that parameter ``heap`` allows; AllocationError: no heap works."""
    if heap == 'auto':
        return auto_heaps(system, use)
    return OfferedHeaps((heap,), (f"parameter 'heap' is '{heap}'",))


def plan(known: Known, agree: Agree, *, own_heap: bool) -> PlannedPool:
    """
    Return the planned pool of a camera whose frames have exactly the negotiated layout.

    :param own_heap: whether this package allocates the buffers from a heap.
    """
    settings = agree(known)
    heap = settings.heap.name if own_heap and settings.heap is not None else ''
    return PlannedPool(settings, settings.sizes(), heap)


def estimated(
    size: Size, memory: str, held: int, fourcc: int = NV12, most: int | None = None
) -> Known:
    """
    Return the facts to assume for a camera whose buffers are known only while it streams.

    The heap and the format count as unknown, so the negotiation ignores the consumers' heaps and
    formats. Only the number of slots that the consumers need changes the planned pool.

    :param memory: a text that names the memory's owner, in place of a heap.
    :param held: the number of slots that the camera needs for itself.
    :param most: the highest number of slots that the camera can have; ``None``: no limit.
    """
    own = BufferConstraints(
        'camera',
        formats=((fourcc, LINEAR),),
        heaps=(memory,),
        slots=held,
        max_slots=most,
        min_size=size,
        max_size=size,
    )
    return Known(own, size, memory=False, formats=False)


def size_of(values: Any) -> Size:
    """Return ``width`` and ``height`` of *values*; :data:`UNKNOWN` if one of them is 0."""
    size = values['width'], values['height']
    return size if all(size) else UNKNOWN


ControlKind = Literal['integer', 'boolean', 'menu', 'integer_menu', 'bitmask', 'button', 'string']
"""
The type of a camera control's value, as in V4L2.

A ``menu`` offers texts, and an ``integer_menu`` offers numbers. A ``button`` has no value. This
package can't set a ``string``.
"""

ControlValue = int | bool | str


@dataclass(frozen=True)
class ControlInfo:
    """
    One control of a camera, such as the brightness, with the control's present value.

    :param name: the title in lower case with underscores; no other control of the camera has it.
    :param minimum: the smallest value; 0 for a bitmask.
    :param maximum: the largest value; for a bitmask, the value with all allowed bits set.
    :param step: the difference between neighbouring values; drivers round other values.
    :param value: the present value; ``None`` for a button, a write-only control, and a control
        that the driver can't read now.
    :param menu: for a menu, the text of each value.
    :param read_only: whether the driver never allows a new value.
    :param inactive: whether the control has no effect because of another control's value, such as
        exposure time while exposure is automatic.
    :param write_only: whether the control can be set but not read.
    :param title: the driver's own name for the control.
    """

    name: str
    kind: ControlKind
    minimum: int = 0
    maximum: int = 0
    step: int = 1
    default: int = 0
    value: int | None = None
    menu: Mapping[int, str] = field(default_factory=dict)
    read_only: bool = False
    inactive: bool = False
    write_only: bool = False
    title: str = ''

    def allowed(self) -> str:
        """Return the control's allowed values as a text: ``0 .. 255``, ``0 (off), 1 (50 Hz)``."""
        if self.kind == 'boolean':
            return 'true or false'
        if self.menu:
            return ', '.join(f'{value} ({text})' for value, text in sorted(self.menu.items()))
        if self.kind == 'bitmask':
            return f'bits of {self.maximum:#x}'
        return f'{self.minimum} .. {self.maximum}' + (
            f' in steps of {self.step}' if self.step > 1 else ''
        )


NO_CONTROLS: Mapping[str, ControlInfo] = MappingProxyType({})


def no_such_control(camera: str, name: str, known: Mapping[str, ControlInfo]) -> ConfigError:
    """Return the error for control *name*, which *camera* doesn't have."""
    names = ', '.join(known) or 'none'
    return ConfigError(f"{camera} has no control '{name}'{nearest(name, known)}; it has {names}")


def checked_value(camera: str, info: ControlInfo, value: ControlValue) -> int:
    """
    Return *value* as the integer that the driver expects.

    The driver rounds the result to the control's step; this function doesn't.

    :param value: an integer. For a boolean it may also be ``True`` or ``False``, for a menu also
        one of its texts; for a button it is ignored.
    :raises ConfigError: the control is read-only or a string, or *value* has the wrong type or is
        outside of the range.
    """
    what = f"{camera}: control '{info.name}'"
    if info.kind == 'string':
        raise ConfigError(
            f"{what} is a text, which this package can't set; use v4l2-ctl --set-ctrl"
        )
    if info.read_only:
        raise ConfigError(f"{what} is read-only; it is {info.value} and can't be set to {value!r}")
    if info.kind == 'button':
        return 0
    number = _number(what, info, value)
    if info.kind == 'bitmask':
        good = number >= 0 and not number & ~info.maximum
    elif info.menu:
        good = number in info.menu
    else:
        good = info.minimum <= number <= info.maximum
    if not good:
        raise ConfigError(f"{what} can't be {value!r}; it takes {info.allowed()}")
    return number


def _number(what: str, info: ControlInfo, value: ControlValue) -> int:
    if isinstance(value, str):
        found = [
            number
            for number, text in info.menu.items()
            if text.casefold() == value.strip().casefold()
        ]
        if not found:
            hint = nearest(value, info.menu.values())
            raise ConfigError(f"{what} can't be {value!r}{hint}; it takes {info.allowed()}")
        return found[0]
    if isinstance(value, bool) and info.kind != 'boolean':
        raise ConfigError(
            f"{what} isn't boolean and can't be {value!r}; it takes {info.allowed()}"
        )
    if not isinstance(value, int):
        raise ConfigError(
            f"{what} can't be {value!r}, which is not an integer; it takes {info.allowed()}"
        )
    return int(value)


SLOT_WAIT_S = 0.25
"""If the source isn't live, :meth:`Camera.capture` waits for a slot at most this many seconds."""
PIPELINE_BUFFERS = ParameterSpec(
    'pipeline_buffers', 8, 'number of buffers of the pipeline.', '', 3, 32
)
"""The parameter that a kind of camera has if its library, not this package, owns the buffers."""
# A pipeline counts as lost if it gives no frame for the longer of two times: _SILENT_S seconds,
# or _SILENT_FRAMES frame periods.
_SILENT_S, _SILENT_FRAMES = 5.0, 10


@dataclass(frozen=True)
class CameraStatistics:
    """
    A camera's frame counters since its start.

    :param captured: frames that were delivered.
    :param dropped: frames that were not delivered: the sum of *lost*, *bad* and *no_slot*, plus
        *late* if the camera decodes.
    :param late: if the CPU draws the camera's frames: the frames that were delivered too late. If
        the camera decodes: the frames that were skipped because newer frames had come.
    :param lost: frames that are missing in the driver's sequence numbers.
    :param bad: frames that the driver marked bad, or that are damaged in a recording.
    :param no_slot: frames for which no slot was free.
    """

    captured: int
    dropped: int
    late: int
    lost: int = 0
    bad: int = 0
    no_slot: int = 0


@dataclass(frozen=True)
class CameraOptions:
    """
    The arguments for opening a camera.

    :param parameters: the capture node's parameters by name. ``width``, ``height`` and
        ``framerate`` are 0 where the camera chooses; ``frame_id`` goes into the frames' headers;
        docs/parameters.md lists all parameters.
    :param now_ns: returns the ROS clock's time in ns.
    :param ledger: counts the bytes that the CPU reads, writes or copies.
    :param clock: the stamp clock of the camera that was lost. The new camera continues with it,
        so that stamps keep increasing. ``None``: make a new clock.
    :param stopping: returns ``True`` when the opening should be given up. A camera that takes long
        to open calls this now and then.
    :param consumers: the constraints of the consumers that are known now.
    :param identity: :attr:`Camera.identity` of the camera that was lost, to find the device's
        present path; empty: no camera was lost.
    :param before: the previous camera, which is closed already; a camera of the same kind may take
        over what the previous one left running. ``None``: there was no camera before.
    """

    parameters: Mapping[str, Any]
    now_ns: Callable[[], int]
    ledger: CopyLedger
    clock: StampClock | None = None
    stopping: Callable[[], bool] = lambda: False
    consumers: Sequence[BufferConstraints] = ()
    identity: str = ''
    before: Camera | None = None

    def stamp_clock(self) -> StampClock:
        """Return :attr:`clock`, made ready for the new camera; if it is ``None``, a new clock."""
        return StampClock(self.now_ns) if self.clock is None else self.clock.reopened()

    def open_heaps(self) -> OfferedHeaps:
        """
        Open the heaps that parameter ``heap`` allows; the caller closes them.

        :raises AllocationError: this machine doesn't have the heap that the parameter names.
        """
        return working_heaps(self.parameters['heap'])

    def pipeline_silence_s(self) -> float:
        """
        Return the seconds without a frame after which a pipeline counts as lost.

        This is parameter ``silent``; if that is 0, the time of 10 frames, but at least 5 s.
        """
        silent, framerate = float(self.parameters['silent']), float(self.parameters['framerate'])
        return silent or max(_SILENT_S, _SILENT_FRAMES / framerate if framerate else 0.0)


class Camera(ABC):
    """
    A source of frames.

    Derive each kind of camera from this class, or from :class:`DrawnCamera` if the CPU writes the
    frames.

    The capture node's code calls :meth:`open`, :meth:`constraints` and :meth:`allocate`, in this
    order. This happens on the node's thread, or on the supervisor's thread if the camera is
    :attr:`SLOW` or was lost. The supervisor's thread then calls :meth:`capture` repeatedly, and
    finally :meth:`close`. Any thread may call :meth:`stop`. If a camera raises
    :class:`~zc_perception.errors.CameraError`, the supervisor closes it and opens it again after a
    pause. A camera owns its device, and the pool of its buffers in ``_pool``. Leased frames stay
    readable after :meth:`close`.
    """

    PARAMETERS: ClassVar[Sequence[ParameterSpec]] = ()
    """
    The parameters that only this kind of camera reads.

    The capture node declares each parameter under the name in its spec. A parameter's description
    need not name the kind of camera, because :mod:`zc_perception.kinds` adds the name.
    """
    CHECKS: ClassVar[Sequence[Check]] = ()
    """The checks that ``zc_doctor`` makes for this kind of camera."""
    MEMORY: ClassVar[str] = 'unknown buffers'
    """A text for users that names the frames' memory, if this package doesn't allocate it."""
    HELD: ClassVar[int] = 2
    """The smallest number of slots that the camera needs for itself."""
    SLOW: ClassVar[bool] = False
    """
    Whether opening may take seconds.

    If so, the supervisor's thread opens the camera, and :meth:`try_out` checks the parameters
    before that.
    """
    PACED: ClassVar[bool] = True
    """Whether frames come at a steady rate; a recording may have pauses."""
    width: int
    height: int
    framerate: float
    clock: StampClock
    """The clock that makes the frames' stamps."""
    _pool: BufferPool | None = None

    @classmethod
    def open(cls, options: CameraOptions) -> Camera:  # noqa: A003
        """
        Open the camera that the parameters name.

        :raises ConfigError: the parameters can't be used, so later attempts would fail, too.
        :raises CameraError: the camera can't be opened now; a later attempt may succeed.
        """
        raise NotImplementedError(f'{cls.__name__} does not override the class method open')

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        """
        Check the parameters' values and combinations, without using a device or its library.

        :raises ConfigError: a value can't be used, or two values contradict each other.
        """
        check_heap_name(values['heap'])

    @classmethod  # noqa: B027
    def try_out(cls, options: CameraOptions) -> None:
        """
        Check the parameters of a :attr:`SLOW` camera as far as possible without opening it.

        :raises ConfigError: the parameters can't be used.
        """

    @classmethod
    def examine(cls, system: System, needs: Needs, camera: NodeNeed) -> Finding:
        """
        Check for ``zc_doctor`` that this machine has the camera that a node's parameters name.

        The check may open the device, but it changes nothing.
        """
        return skip(
            (f'camera {camera.kind} has no check of its own; start the node and read its log'),
            camera.node,
        )

    @classmethod
    def heap_use(cls, values: Mapping[str, Any]) -> HeapUse | None:
        """Return what the heap's buffers are for; ``None``: parameter ``heap`` has no effect."""
        return None

    @classmethod
    def picture_size(cls, system: System, values: Mapping[str, Any]) -> Size:
        """Return the frames' width and height for ``zc_doctor``; :data:`UNKNOWN`: not known."""
        return size_of(values)

    @classmethod
    def planned_pool(
        cls, system: System, values: Mapping[str, Any], heaps: OfferedHeaps | None, agree: Agree
    ) -> PlannedPool | None:
        """
        Return for ``zc_doctor`` the pool that the camera will have; ``None``: not known.

        :param heaps: the heaps that parameter ``heap`` allows; ``None``: :meth:`heap_use`
            returned ``None``.
        :param agree: negotiates the buffers' settings with the consumers.
        :raises NegotiationError: the camera and its consumers can't agree.
        """
        size = cls.picture_size(system, values)
        if not all(size):
            return None
        return plan(estimated(size, cls.MEMORY, cls.HELD), agree, own_heap=False)

    @classmethod
    def keeps_all(cls, values: Mapping[str, Any]) -> bool:
        """Return whether the camera waits for slow consumers, instead of dropping frames."""
        return False

    @classmethod
    def recorded_stamps(cls, values: Mapping[str, Any]) -> bool:
        """Return whether frames have a recording's stamps instead of the present time."""
        return False

    def tune(self, name: str, value: Any) -> None:  # noqa: B027
        """
        Use a new value of a parameter in :attr:`PARAMETERS` that may change while frames flow.

        The node's thread calls this method, or the thread that has just opened the camera. It must
        not block.
        """

    @property
    @abstractmethod
    def heap_name(self) -> str:
        """
        The name of the heap that the camera's buffers come from.

        Before :meth:`allocate`, this may be only the first of several heaps in the camera's
        constraints.
        """

    @property
    @abstractmethod
    def device(self) -> str:
        """The camera's name in diagnostics: a device's or file's path, or a scene and its seed."""

    @property
    def identity(self) -> str:
        """
        A text by which the same camera is found again after it was unplugged.

        For example a serial number, a bus position, a file's path or a seed.
        """
        return self.device

    @property
    def ended(self) -> bool:
        """Whether the source will never give another frame."""
        return False

    @property
    def has_lens(self) -> bool:
        """Whether the camera can be calibrated; cameras that draw or replay pictures can't."""
        return True

    def notices(self) -> Sequence[str]:
        """Return sentences that are logged once and shown as a warning in diagnostics."""
        return ()

    def facts(self) -> Mapping[str, object]:
        """Return the values that only this kind of camera shows in diagnostics, by name."""
        return {}

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """The camera's own threads, which process frames; any thread may read this property."""
        return ()

    def controls(self) -> Mapping[str, ControlInfo]:
        """Return the camera's controls by name, with their ranges and present values."""
        return NO_CONTROLS

    def set_control(self, name: str, value: ControlValue) -> int | None:
        """
        Set a control and return its new value; ``None``: the control can't be read.

        :raises ConfigError: the camera has no such control, or the value is outside of its range.
        :raises CameraError: the device refuses the value now.
        """
        raise no_such_control(self.device, name, NO_CONTROLS)

    @abstractmethod
    def constraints(self) -> BufferConstraints:
        """
        Return the camera's constraints for the negotiation: the frames that it can produce.

        Field ``heaps`` has the heaps that the camera's buffers may come from, the best first.
        """

    def possible(self) -> BufferConstraints:
        """Return the constraints that the camera could have if it were closed and reopened."""
        return self.constraints()

    @property
    def reallocates(self) -> bool:
        """
        Whether :meth:`allocate` may be called again between two frames.

        If not, the camera is closed and opened again when other buffers are needed.
        """
        return False

    def sizes(self) -> Sequence[str]:
        """
        Return the image sizes that the device offers, such as ``1280x720``.

        The result is empty if the device doesn't list its sizes.
        """
        return ()

    def allocate(self, request: AllocationRequest) -> None:
        """
        Allocate the negotiated buffers from the negotiated heap, before the first frame.

        The camera chooses one of the negotiated modifiers. Derived classes override this method,
        or :meth:`configure` if their frames are LINEAR.
        """
        self.configure(request.settings())

    def configure(self, settings: BufferSettings) -> None:
        """Allocate buffers for frames that have exactly the layout of *settings*."""
        raise NotImplementedError(
            f'{type(self).__name__} overrides neither allocate nor configure'
        )

    @property
    def pool(self) -> BufferPool | None:
        """The pool that leases the frames' slots; ``None`` before :meth:`allocate`."""
        return self._pool

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The pool's slots, which consumers import before the first frame; empty: no pool."""
        return () if self.pool is None else self.pool.slots

    def pool_statistics(self) -> PoolStatistics | None:
        """Return the pool's counters and lease holders; ``None`` before :meth:`allocate`."""
        return None if self.pool is None else self.pool.statistics()

    @abstractmethod
    def capture(self) -> Frame | None:
        """
        Return the next frame.

        ``None``: the frame was dropped, no frame came in time, or the camera was stopped.

        :raises CameraError: the source failed.
        """

    @abstractmethod
    def statistics(self) -> CameraStatistics:
        """Return the camera's counters."""

    @abstractmethod
    def stop(self) -> None:
        """Make a waiting :meth:`capture` return. Idempotent; any thread may call this."""

    @abstractmethod
    def close(self) -> None:
        """Close the device and the pool; leased frames stay readable until their release."""

    def close_rest(self) -> None:  # noqa: B027
        """
        Stop everything that :meth:`close` left running for the next camera.

        This is called after :meth:`close` if no other camera will follow.
        """


def drawn_constraints(fourcc: int, size: Size, heaps: OfferedHeaps) -> BufferConstraints:
    """Return the constraints of a producer whose frames the CPU writes."""
    return BufferConstraints(
        'camera',
        formats=((fourcc, LINEAR),),
        heaps=heaps.names,
        memory_note='; '.join(heaps.reasons),
        slots=2,  # the CPU fills one slot while the other is published
        min_size=size,
        max_size=size,
        cpu_access=CpuAccess.READ | CpuAccess.WRITE,
    )


def heap_pool(
    settings: BufferSettings, heaps: OfferedHeaps, *, name: str, reserve: int
) -> BufferPool:
    """
    Return a pool whose slots stay mapped for the CPU, for a producer whose frames the CPU writes.

    :param heaps: open heaps, which include the heap that *settings* name; the heaps must stay open
        as long as the pool.
    :param name: the producer's name, for messages.
    :param reserve: number of slots that the producer needs for itself. If the pool has fewer
        slots, all of them are reserved.
    :raises AllocationError: there is no memory, or the heap can't be opened any more.
    """
    if settings.heap is not None:
        heaps.choose(settings.heap.name)
    sizes = settings.sizes()

    def allocate() -> tuple[DmaBuf, ...]:
        return tuple(map(heaps.allocate, sizes))

    return BufferPool(
        settings.layout,
        mapped(allocate),
        settings.slots,
        name=name,
        reserve=min(reserve, settings.slots),
    )


class DrawnCamera(Camera):
    """
    A camera whose frames the CPU writes into the pool's slots, at a steady rate.

    Derived classes override :meth:`render` or :meth:`draw`, which only the capturing thread calls.

    :param heap: the heap of the slots, or all heaps that they may come from; the camera owns and
        closes them.
    :param now_ns: returns the ROS clock's time in ns.
    :param clock: makes the stamps of live frames; ``None``: the camera makes a new clock.
    :param ledger: counts the bytes of each frame that was written.
    :param live: ``True``: frames come in real time, and a frame is dropped when no slot is free;
        ``False``: they come as fast as possible, and the camera waits for a slot.
    """

    SIZE: ClassVar[tuple[int, int]] = (640, 360)
    """
    The frames' width and height if parameters ``width`` and ``height`` are 0.

    (0, 0): frames have the size of the recording that the camera plays, and may also have the
    recording's format.
    """
    FRAMERATE: ClassVar[float] = 30.0
    """Frames per second if parameter ``framerate`` is 0."""
    reason = 'draw'
    fourcc = NV12
    colorimetry = BT601_LIMITED
    reallocates = True

    def __init__(
        self,
        width: int,
        height: int,
        framerate: float,
        frame_id: str,
        *,
        heap: Heap,
        now_ns: Callable[[], int],
        ledger: CopyLedger,
        live: bool = True,
        clock: StampClock | None = None,
    ) -> None:
        self.width = width
        self.height = height
        self.framerate = framerate
        self._frame_id = frame_id
        self._heaps = OfferedHeaps.only(heap)
        self._now_ns = now_ns
        self.clock = StampClock(now_ns) if clock is None else clock.reopened()
        self._ledger = ledger
        self._live = live
        self._stop = threading.Event()
        self._next_time = 0.0
        self._first_stamp_ns: int | None = None
        self._sequence = 0
        self._captured = 0
        self._dropped = 0
        self._late = 0
        self._bad = 0
        self._bytes = 0

    @classmethod
    def open(cls, options: CameraOptions) -> Camera:  # noqa: A003
        heaps = options.open_heaps()
        try:
            return cls.from_parameters(
                options.parameters,
                frame_id=options.parameters['frame_id'],
                heap=heaps,
                now_ns=options.now_ns,
                clock=options.clock,
                ledger=options.ledger,
            )
        except ValueError as error:
            heaps.close()
            raise ConfigError(str(error)) from error
        except BaseException:
            heaps.close()
            raise

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], **base: Any) -> DrawnCamera:
        """
        Make the camera from the node's parameters.

        A derived class overrides this method if it has further parameters.

        :param base: further arguments for :class:`DrawnCamera`'s constructor; pass them on.
        :raises ValueError: the camera can't make pictures of this size or rate.
        """
        width, height = parameters['width'] or cls.SIZE[0], parameters['height'] or cls.SIZE[1]
        return cls(width, height, parameters['framerate'] or cls.FRAMERATE, **base)

    @classmethod
    def examine(cls, system: System, needs: Needs, camera: NodeNeed) -> Finding:
        return ok(f'camera {camera.kind} needs no device', camera.node)

    @classmethod
    def heap_use(cls, values: Mapping[str, Any]) -> HeapUse | None:
        return HeapUse.CAMERA

    @classmethod
    def picture_size(cls, system: System, values: Mapping[str, Any]) -> Size:
        return values['width'] or cls.SIZE[0], values['height'] or cls.SIZE[1]

    @classmethod
    def planned_pool(
        cls, system: System, values: Mapping[str, Any], heaps: OfferedHeaps | None, agree: Agree
    ) -> PlannedPool | None:
        size = cls.picture_size(system, values)
        if heaps is None or not all(size):
            return None
        own = drawn_constraints(cls.fourcc, size, heaps)
        return plan(Known(own, size, memory=True, formats=all(cls.SIZE)), agree, own_heap=True)

    @property
    def has_lens(self) -> bool:
        return False

    @property
    def heap_name(self) -> str:
        return self._heaps.name

    @property
    def device(self) -> str:
        return type(self).__name__

    def constraints(self) -> BufferConstraints:
        return drawn_constraints(self.fourcc, (self.width, self.height), self._heaps)

    def configure(self, settings: BufferSettings) -> None:
        layout = settings.layout
        self._bytes = sum(
            p.rows(layout.height) * p.row_bytes(layout.width) for p in layout.format.planes
        )
        before = self._pool
        self._pool = heap_pool(
            settings, self._heaps, name='camera', reserve=self.constraints().slots
        )
        if before is not None:
            before.close()

    def draw(self, sequence: int, planes: Sequence[NDArray[Any]]) -> bool:
        """
        Write frame number *sequence* into *planes*, whose format is :attr:`fourcc`.

        Return ``True``, or ``False`` if the camera has no frame with this number.
        """
        return self.render(sequence, planes[0], planes[1])

    def render(self, sequence: int, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> bool:
        """
        Write frame number *sequence* in NV12 into the arrays *luma* and *chroma*.

        Their shapes are (height, width) and (height/2, width/2, 2).

        Cameras with NV12 frames override this method instead of :meth:`draw`. Like
        :meth:`draw`, it returns whether the camera has this frame.
        """
        raise NotImplementedError(f'{type(self).__name__} overrides neither draw nor render')

    def capture(self) -> Frame | None:
        if self._pool is None:
            raise CameraError('the camera is not configured')
        if not self._wait_for_turn():
            return None
        slot = self._pool.acquire(wait_s=0.0 if self._live else SLOT_WAIT_S)
        if slot is None:
            if self._live:
                self._skip()
            return None
        started_ns = time.monotonic_ns()
        header = self._header()
        drawn = False
        try:
            with map_buffers(
                slot.layout, slot.buffers, CpuAccess.READ | CpuAccess.WRITE, []
            ) as planes:
                drawn = self.draw(self._sequence, planes)
            # None: the derived class's method lacks a return statement. Raise an error, because
            # otherwise each frame would be skipped silently.
            if drawn is None:
                raise self._forgotten_return()
        finally:
            if not drawn:
                self._pool.discard(slot)
        if not drawn:
            return None
        self._ledger.book(self.reason, self._bytes)
        frame = Frame.publish_slot(
            self._pool,
            slot,
            header=header,
            colorimetry=self.colorimetry,
            sequence=self._sequence,
            captured_ns=time.monotonic_ns(),
            capture_cost_ns=time.monotonic_ns() - started_ns,
        )
        self._sequence += 1
        self._captured += 1
        return frame

    def _forgotten_return(self) -> ConfigError:
        method = 'render' if type(self).draw is DrawnCamera.draw else 'draw'
        code = getattr(self, method).__code__
        return ConfigError(
            f'{type(self).__name__}.{method} returned None; it must return True for a frame, or '
            f'False if there is none ({os.path.basename(code.co_filename)}:{code.co_firstlineno})'
        )

    def _skip(self) -> None:
        """Count the next frame as dropped, because no slot is free for it."""
        self._sequence += 1
        self._dropped += 1

    def _header(self) -> Header:
        return Header(self._stamp(), self._frame_id)

    def _stamp(self) -> int:
        """
        Return the frame's stamp: the present time if the camera is live.

        The frames of a camera that isn't live come as fast as possible. Their stamps follow the
        first stamp at the rate :attr:`framerate`, so that the intervals are the same in every run.
        """
        if self._live:
            return self.clock.stamp(0, CaptureClock.UNKNOWN)
        if self._first_stamp_ns is None:
            self._first_stamp_ns = self._now_ns()
        return self._first_stamp_ns + self._elapsed_ns()

    def _elapsed_ns(self) -> int:
        """Return ns from the first frame to frame ``_sequence``, for a camera that isn't live."""
        return round(self._sequence * 1e9 / self.framerate)

    def _wait_for_turn(self) -> bool:
        if not self._live:
            return not self._stop.is_set()
        now = time.monotonic()
        if self._next_time == 0.0:
            self._next_time = now
        period = 1.0 / self.framerate
        if now - self._next_time > period:
            self._late += 1
            self._next_time = now
        stopped = self._stop.wait(max(0.0, self._next_time - now))
        self._next_time += period
        return not stopped

    def statistics(self) -> CameraStatistics:
        return CameraStatistics(
            self._captured,
            self._dropped + self._bad,
            self._late,
            bad=self._bad,
            no_slot=self._dropped,
        )

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        try:
            self.stop()
        finally:
            if self._pool is not None:
                self._pool.close()
            self._heaps.close()
