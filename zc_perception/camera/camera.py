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
The base of every camera, and of the cameras whose frames the CPU writes.

Read :class:`Camera` first.
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
"""Stands for the size of pictures that isn't known before the camera streams."""


@dataclass(frozen=True)
class Known:
    """
    What a kind of camera knows about its frames before it streams.

    :param constraints: the camera's own side of the negotiation.
    :param memory: whether the buffers' memory is known already; if not, consumers' wishes for
        memory don't count.
    :param formats: whether the frames' format is known already; if not, consumers' wishes for the
        format don't count.
    """

    constraints: BufferConstraints
    size: Size
    memory: bool
    formats: bool = True


Agree = Callable[[Known], BufferSettings]
"""
A function that returns what a camera and its consumers would agree on.

It raises NegotiationError if they don't agree.
"""


@dataclass(frozen=True)
class PlannedPool:
    """
    The pool that a camera is going to have, for ``zc_doctor``.

    :param settings: what was agreed on, in the layout that the frames are going to have.
    :param buffers: bytes of each buffer of a slot.
    :param heap: the heap that the buffers come from; empty: another owner, such as a driver,
        allocates them.
    """

    settings: BufferSettings
    buffers: Sequence[int]
    heap: str = ''


def offered_heaps(system: System, heap: str, use: HeapUse) -> OfferedHeaps:
    """
    Return the heaps that parameter ``heap`` allows.

    :raises AllocationError: no heap can be used.
    """
    if heap == 'auto':
        return auto_heaps(system, use)
    return OfferedHeaps((heap,), (f"parameter 'heap' is '{heap}'",))


def plan(known: Known, agree: Agree, *, own_heap: bool) -> PlannedPool:
    """
    Return the pool of a camera whose frames get exactly the layout that was agreed on.

    :param own_heap: whether this package allocates the buffers from a heap.
    """
    settings = agree(known)
    heap = settings.heap.name if own_heap and settings.heap is not None else ''
    return PlannedPool(settings, settings.sizes(), heap)


def estimated(
    size: Size, memory: str, held: int, fourcc: int = NV12, most: int | None = None
) -> Known:
    """
    Estimate the pool of a camera that can't be asked before it streams.

    Of its consumers only their number counts.

    :param memory: who owns the memory.
    :param held: slots that the camera needs for itself.
    :param most: the highest number of slots that the camera can have.
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
``menu`` has texts to choose from, ``integer_menu`` numbers; a ``button`` has no value; a
``string`` can't be set here.
"""

ControlValue = int | bool | str


@dataclass(frozen=True)
class ControlInfo:
    """
    One control of a camera, such as its brightness, with its value of now.

    :param name: the driver's name in lower case with underscores, unique on its camera.
    :param minimum: smallest value; 0 for a bitmask.
    :param maximum: largest value; for a bitmask the value with all allowed bits set.
    :param step: difference between neighbouring values; drivers round other values.
    :param value: the value in force; ``None`` for a button, a write-only control, and one that the
        driver can't read now.
    :param menu: for a menu, the meaning of each value.
    :param read_only: the driver never lets it be set.
    :param inactive: the control has no effect because of another control's value, such as exposure
        time while exposure is automatic.
    :param write_only: the control can be set but not read.
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
        """
        Return the values that the control takes, as a text for messages.

        For example ``0 .. 255`` or ``0 (Disabled), 1 (50 Hz)``.
        """
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
    """Return the error for a control that *camera* doesn't have."""
    names = ', '.join(known) or 'none'
    return ConfigError(f"{camera} has no control '{name}'{nearest(name, known)}; it has {names}")


def checked_value(camera: str, info: ControlInfo, value: ControlValue) -> int:
    """
    Return *value* as the number that the driver takes.

    The number isn't rounded: the driver does this by its own steps.

    :param value: an integer; ``True`` and ``False`` for a boolean; for a menu also one of its
        texts; for a button any value.
    :raises ConfigError: the control is read-only, or *value* has the wrong type or is outside of
        the range. The message names the value and the range.
    """
    what = f"{camera}: control '{info.name}'"
    if info.kind == 'string':
        raise ConfigError(f"{what} holds a text, which can't be set here; use v4l2-ctl --set-ctrl")
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
        raise ConfigError(f"{what} can't be {value!r}, it is no switch; it takes {info.allowed()}")
    if not isinstance(value, int):
        raise ConfigError(
            f"{what} can't be {value!r}, which is not an integer; it takes {info.allowed()}"
        )
    return int(value)


SLOT_WAIT_S = 0.25
"""
How long one :meth:`Camera.capture` of a source that isn't live waits for a slot, so that stopping
stays quick.
"""
PIPELINE_BUFFERS = ParameterSpec(
    'pipeline_buffers', 8, 'number of buffers of the pipeline.', '', 3, 32
)
"""Each kind of camera whose library has the buffers declares this parameter."""
# A pipeline without a frame for both of these counts as lost: seconds, and periods of frames.
_SILENT_S, _SILENT_FRAMES = 5.0, 10


@dataclass(frozen=True)
class CameraStatistics:
    """
    A camera's counters since its start.

    :param dropped: frames that the camera did not deliver: *lost*, *bad* and *no_slot* together,
        and also *late* if the camera decodes.
    :param late: if the camera draws: frames that were delivered too late. If the camera decodes:
        frames that were skipped in favour of newer ones.
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
    What a camera needs to be opened.

    :param parameters: the capture node's parameters by name. ``width``, ``height`` and
        ``framerate`` are 0 where the camera chooses; ``frame_id`` goes into the frames' headers;
        docs/parameters.md lists all parameters.
    :param now_ns: the ROS clock.
    :param ledger: counts the pixels that the CPU reads, writes or copies.
    :param clock: the clock that made the stamps before the camera was lost. The camera goes on
        with this clock, so that its stamps go on increasing. ``None``: the camera makes a new
        clock.
    :param stopping: returns whether nobody waits for the camera any more. An opening that takes
        long asks this now and then, and gives up.
    :param consumers: returns what is known now about the consumers of the frames.
    :param identity: :attr:`Camera.identity` of the camera that was lost, to find the device's
        present path; empty: no camera was lost.
    :param before: the previous camera, which is closed already.
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
        """Return the clock that makes the stamps: :attr:`clock`, or a new one."""
        return StampClock(self.now_ns) if self.clock is None else self.clock.reopened()

    def open_heaps(self) -> OfferedHeaps:
        """
        Open the heaps that parameter ``heap`` allows.

        The caller closes them.

        :raises AllocationError: this machine lacks the heap.
        """
        return working_heaps(self.parameters['heap'])

    def pipeline_silence_s(self) -> float:
        """
        Return how many seconds a pipeline may give no frame before it counts as lost.

        This is parameter ``silent``; if it is 0, the time of 10 frames, but at least 5 s.
        """
        silent, framerate = float(self.parameters['silent']), float(self.parameters['framerate'])
        return silent or max(_SILENT_S, _SILENT_FRAMES / framerate if framerate else 0.0)


class Camera(ABC):
    """
    A source of frames.

    Derive from it, or from :class:`DrawnCamera` if the CPU writes the frames.

    The capture node calls in this order: :meth:`open`, :meth:`constraints`, :meth:`allocate`, then
    :meth:`capture` again and again on the supervisor's thread, and finally :meth:`close`.
    :meth:`stop` may come from any thread. If a camera raises
    :class:`~zc_perception.errors.CameraError`, the supervisor closes it and opens it again after a
    pause. A camera owns its device, and the pool of its buffers in ``_pool``; leased frames stay
    readable after :meth:`close`.
    """

    PARAMETERS: ClassVar[Sequence[ParameterSpec]] = ()
    """
    The parameters that this kind of camera reads, besides those that all cameras have.

    Their names are the capture node's; their texts don't name the kind.
    """
    CHECKS: ClassVar[Sequence[Check]] = ()
    """The checks that ``zc_doctor`` makes for this kind of camera."""
    MEMORY: ClassVar[str] = 'unknown buffers'
    """Words for people: which memory the frames are in, if this package doesn't allocate it."""
    HELD: ClassVar[int] = 2
    """The number of slots that the camera needs for itself, at least."""
    SLOW: ClassVar[bool] = False
    """
    Whether opening may take seconds.

    The camera's own thread opens it then, and :meth:`try_out` reports before that what isn't
    possible.
    """
    PACED: ClassVar[bool] = True
    """
    Whether frames come at a steady pace.

    A recording's frames may have pauses.
    """
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

        :raises ConfigError: the parameters can't be used, and waiting would not help.
        :raises CameraError: the camera can't be opened now; a later attempt may succeed.
        """
        raise NotImplementedError(f'{cls.__name__} does not override the class method open')

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        """
        Check that the parameters go together.

        Only what can be known without a device or its library is checked.

        :raises ConfigError: they don't go together.
        """
        check_heap_name(values['heap'])

    @classmethod  # noqa: B027
    def try_out(cls, options: CameraOptions) -> None:
        """
        Check what can be known of a :attr:`SLOW` camera without opening anything.

        :raises ConfigError: the parameters can't be used.
        """

    @classmethod
    def examine(cls, system: System, needs: Needs, camera: NodeNeed) -> Finding:
        """
        Check for ``zc_doctor`` that the machine has what a node's parameters ask for.

        The check may open the device, but it changes nothing.
        """
        return skip(
            (
                f'camera {camera.kind}: nothing is known of what it needs; start the node to see '
                'what it says'
            ),
            camera.node,
        )

    @classmethod
    def heap_use(cls, values: Mapping[str, Any]) -> HeapUse | None:
        """Return how it uses parameter ``heap``; ``None``: its buffers come from no heap."""
        return None

    @classmethod
    def picture_size(cls, system: System, values: Mapping[str, Any]) -> Size:
        """Return the pictures' size for ``zc_doctor``; (0, 0): unknown before streaming."""
        return size_of(values)

    @classmethod
    def planned_pool(
        cls, system: System, values: Mapping[str, Any], heaps: OfferedHeaps | None, agree: Agree
    ) -> PlannedPool | None:
        """
        Return for ``zc_doctor`` the pool that the camera is going to have.

        ``None``: the size of the camera's pictures isn't known.

        :param heaps: the heaps that the buffers of :meth:`heap_use` may come from.
        :raises NegotiationError: the consumers don't agree.
        """
        size = cls.picture_size(system, values)
        if not all(size):
            return None
        return plan(estimated(size, cls.MEMORY, cls.HELD), agree, own_heap=False)

    @classmethod
    def keeps_all(cls, values: Mapping[str, Any]) -> bool:
        """Tell whether the camera drops no frame, but waits until consumers take each one."""
        return False

    @classmethod
    def recorded_stamps(cls, values: Mapping[str, Any]) -> bool:
        """Tell whether its frames have the stamps of a recording instead of the present time."""
        return False

    def tune(self, name: str, value: Any) -> None:  # noqa: B027
        """
        Take a new value of a parameter in :attr:`PARAMETERS` that may change while frames flow.

        The node's thread calls this method, so it must not wait.
        """

    @property
    @abstractmethod
    def heap_name(self) -> str:
        """
        The name of the heap that the camera's buffers come from.

        Before :meth:`allocate` this may be only the first of several heaps in its constraints.
        """

    @property
    @abstractmethod
    def device(self) -> str:
        """The camera's name in diagnostics: a device's path, a file, or a seed."""

    @property
    def identity(self) -> str:
        """
        The text by which the same camera is found again after it was unplugged.

        For example a serial number, a place on a bus, a file's path or a seed.
        """
        return self.device

    @property
    def ended(self) -> bool:
        """Whether the source has no more frames, ever."""
        return False

    @property
    def has_lens(self) -> bool:
        """Whether the camera can be calibrated: drawn and replayed pictures have no lens."""
        return True

    def notices(self) -> Sequence[str]:
        """Return sentences to log once: what differs from the request, what is missing."""
        return ()

    def facts(self) -> Mapping[str, object]:
        """Return further values for diagnostics, by name."""
        return {}

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """The camera's own threads that frames pass through; any thread may read this."""
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
        Return the camera's side of the negotiation: what frames it can produce.

        Field ``heaps`` says where its buffers may come from, the best first.
        """

    def possible(self) -> BufferConstraints:
        """Return what frames it could produce if it were opened again for other consumers."""
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
        Return the sizes of images that the parameters could ask for, such as ``1280x720``.

        An empty result means that the device doesn't list its sizes.
        """
        return ()

    def allocate(self, request: AllocationRequest) -> None:
        """
        Allocate the buffers that were agreed on, from the heap that was agreed on.

        No frame is captured yet. The camera chooses among the agreed modifiers. Derived classes
        override this method, or :meth:`configure` if their frames are LINEAR.
        """
        self.configure(request.settings())

    def configure(self, settings: BufferSettings) -> None:
        """Allocate buffers of exactly this layout."""
        raise NotImplementedError(
            f'{type(self).__name__} overrides neither allocate nor configure'
        )

    @property
    def pool(self) -> BufferPool | None:
        """The pool that leases the frames' slots; ``None`` before :meth:`allocate`."""
        return self._pool

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The pool's slots, for trial imports before the first frame; empty without a pool."""
        return () if self.pool is None else self.pool.slots

    def pool_statistics(self) -> PoolStatistics | None:
        """Return the pool's counters and who holds slots; ``None`` before :meth:`allocate`."""
        return None if self.pool is None else self.pool.statistics()

    @abstractmethod
    def capture(self) -> Frame | None:
        """
        Return the next frame.

        ``None``: no frame this time, because it was dropped, none arrived within a bounded wait,
        or the camera was stopped.

        :raises CameraError: the source failed.
        """

    @abstractmethod
    def statistics(self) -> CameraStatistics:
        """Return the camera's counters."""

    @abstractmethod
    def stop(self) -> None:
        """Make a waiting :meth:`capture` return. Idempotent."""

    @abstractmethod
    def close(self) -> None:
        """Free everything; leased frames stay readable until they are released."""

    def close_rest(self) -> None:  # noqa: B027
        """End what :meth:`close` left running for the next camera, because none will be opened."""


def drawn_constraints(fourcc: int, size: Size, heaps: OfferedHeaps) -> BufferConstraints:
    """
    Return the constraints of a producer whose frames the CPU writes.

    The producer needs two slots: it fills one while another one is being published.
    """
    return BufferConstraints(
        'camera',
        formats=((fourcc, LINEAR),),
        heaps=heaps.names,
        memory_note='; '.join(heaps.reasons),
        slots=2,
        min_size=size,
        max_size=size,
        cpu_access=CpuAccess.READ | CpuAccess.WRITE,
    )


def heap_pool(
    settings: BufferSettings, heaps: OfferedHeaps, *, name: str, reserve: int
) -> BufferPool:
    """
    Return the pool of a producer whose frames the CPU writes.

    The pool has the number of slots that *settings* say, each mapped for the CPU.

    :param heaps: open heaps, one of which is the settings' heap; they have to stay open as long as
        the pool.
    :param name: the producer's name, for messages.
    :param reserve: slots that the producer needs for itself, where the pool has enough.
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
    A camera whose frames the CPU writes into the pool's slots, at a steady pace.

    Derived classes override :meth:`render` or :meth:`draw`. The camera owns its heap and its pool.
    Only the capturing thread calls its methods, except :meth:`stop`.

    :param heap: the heap of the slots, or all heaps that they may come from; the camera owns and
        closes them.
    :param now_ns: the ROS clock.
    :param clock: as in :class:`CameraOptions`.
    :param ledger: counts each frame that was written.
    :param live: ``True``: the camera drops a frame when no slot is free; ``False``: it waits for a
        slot.
    """

    SIZE: ClassVar[tuple[int, int]] = (640, 360)
    """
    Width and height of the frames if the parameters say 0.

    (0, 0): frames have the source's size, and may have the source's format.
    """
    FRAMERATE: ClassVar[float] = 30.0
    """Frames per second if the parameter says 0."""
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

        :param base: what :class:`DrawnCamera` itself takes besides width, height and framerate.
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
        """``False``, unless a derived class overrides this property."""
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
        Write frame *sequence* into *planes*, whose format is :attr:`fourcc`.

        Return ``False`` if this frame does not exist.
        """
        return self.render(sequence, planes[0], planes[1])

    def render(self, sequence: int, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> bool:
        """
        Write frame *sequence*: luma (height, width), chroma (height/2, width/2, 2).

        Cameras with NV12 frames override this method instead of :meth:`draw`.
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
            if drawn is None:  # without this error every frame would be skipped silently
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
        """Skip the frame that is due: no slot is free for it."""
        self._sequence += 1
        self._dropped += 1

    def _header(self) -> Header:
        """Return the header of the frame that is about to be written."""
        return Header(self._stamp(), self._frame_id)

    def _stamp(self) -> int:
        """
        Return the frame's stamp.

        A live camera's stamp is the present time. A file that is read as fast as possible has its
        own time axis, so that each stamp belongs to one frame in every run.
        """
        if self._live:
            return self.clock.stamp(0, CaptureClock.UNKNOWN)
        if self._first_stamp_ns is None:
            self._first_stamp_ns = self._now_ns()
        return self._first_stamp_ns + self._elapsed_ns()

    def _elapsed_ns(self) -> int:
        """Return the time from the first frame to the next one, on the file's own time axis."""
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
        self.stop()
        if self._pool is not None:
            self._pool.close()
        self._heaps.close()
