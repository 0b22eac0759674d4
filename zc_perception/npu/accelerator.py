"""The small interface that all accelerators share: read :class:`Accelerator`, then :class:`Job`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
import threading
from typing import Any, ClassVar, Protocol

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.frame import Frame
from zc_perception.machine.checks import Check
from zc_perception.machine.system import System
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.fence import Fence
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.driver_events import DriverEvents
from zc_perception.npu.engine_rules import EngineRules
from zc_perception.npu.kinds import FOR_ALL
from zc_perception.npu.manifest import ModelManifest
from zc_perception.parameters import ParameterSpec
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import LINEAR
from zc_perception.pixel.readable import READABLE

Outputs = Sequence[RawTensor]


@dataclass(frozen=True)
class Capabilities:
    """What an accelerator is.

    :param copy_free: whether it reads the frame's memory itself, without any pass of the CPU over
        the pixels.
    :param max_in_flight: jobs that it takes before the first has completed.
    :param may_hang: whether jobs that don't end mean that the device has to be opened anew; a CPU
        is only slow.
    :param on_card: whether it is a device of its own, such as a card on PCI; the CPU is none.
    """

    name: str
    device: str
    copy_free: bool
    max_in_flight: int
    may_hang: bool = True
    on_card: bool = True


@dataclass(frozen=True)
class ImportHandle:
    """An imported frame buffer, valid until released.

    :param number: the device's handle; 0 where nothing has to be imported.
    :param cached: the accelerator's import cache owns it.
    """

    number: int = 0
    cached: bool = True


class Job(Protocol):
    """A submitted frame. Its owner ends it by exactly one of :meth:`close` and :meth:`abandon`.

    A job may have ``device_seqno``, the driver's own number of it (from 1), by which it is found
    again among the kernel's events.
    """

    @property
    def fence(self) -> Fence:
        """Signals when the result is there, or failed. The job owns it."""

    def outputs(self) -> Outputs:
        """The raw result, once the fence signalled success: views that are valid until :meth:`close`. The CPU's access to the result's
        memory (DMA_BUF_IOCTL_SYNC) begins here and ends with :meth:`close`.

        :raises AcceleratorError: the job failed.
        :raises DeviceLostError: the device failed, and every other job with it.
        """

    @property
    def letterbox(self) -> Letterbox:
        """Geometry between the frame and the result's pixels."""

    def abandon(self) -> Fence:
        """Give the job up instead of closing it: nobody wants its result any more.

        The fence that is returned belongs to the caller. It signals when the device no longer uses
        the frame. :attr:`fence` signals when the device has ended the job. Then the job's place on
        the device is free, and the accelerator has the result's memory again. The two may be the
        same fence. Who wants to wait for :attr:`fence` afterwards duplicates its descriptor before
        this call.
        """

    def close(self) -> None:
        """Give the result's memory and the fence back."""


def reads_by_cpu(participant: str) -> BufferConstraints:
    """What an accelerator states for which the CPU reads the pixels."""
    formats, costs = tuple((fourcc, LINEAR) for fourcc in READABLE), tuple(READABLE.values())
    return BufferConstraints(participant, formats=formats, costs=costs, cpu_access=CpuAccess.READ)


def with_frames(constraints: BufferConstraints, in_flight: int, most: int) -> BufferConstraints:
    """An accelerator's constraints with the slots that inference holds: the frames in flight, and the one that waits.

    :param in_flight: as parameter ``in_flight`` asks for.
    :param most: jobs that the accelerator takes at the same time.
    """
    return replace(constraints, slots=min(in_flight, most) + 1)


class Accelerator(ABC):
    """One opened device. Derive from it, and register the class in :mod:`zc_perception.npu.kinds` or by an entry point.

    What it declares of itself stands first; nodes, launch files, ``--help``, the schemas,
    ``zc_doctor`` and ``zc_verify`` read it. A new accelerator has to say :meth:`open`,
    :meth:`capabilities`, :meth:`constraints`, :meth:`load`, :meth:`submit` and :meth:`close`. The
    other methods have defaults that fit one which imports no buffers: the CPU reads the frames.

    *Who owns what.* The scheduler owns the accelerator while it runs, and whoever opened it closes
    it afterwards. Each job belongs to the scheduler, which closes or abandons it. The frame stays
    leased until the job's fence has signalled.

    *Threads.* One thread uses it, the scheduler's. Any thread may call what only reads:
    :meth:`capabilities`, :meth:`notices`, :meth:`facts`, :meth:`hot_threads`, the counters.

    *In what order.* ``open``, ``constraints``, ``load``, ``trial_import`` of each buffer, then for
    each frame ``import_frame``, ``submit`` and, when its job has ended, ``release``; at the end
    ``close``.

    A device that is gone or hangs raises :class:`DeviceLostError` from :meth:`import_frame` or
    :meth:`submit`, or fails jobs with it. All that is left to do then is to abandon or close the
    jobs and to :meth:`close` the accelerator: both work on a dead device. A new one is opened in
    its place, which shares no import with it.
    """

    ENGINES: ClassVar[Sequence[EngineRules]] = ()
    """What may stand in a manifest as ``engine`` for it, best first."""
    PARAMETERS: ClassVar[Sequence[ParameterSpec]] = ()
    """The inference node's parameters that it reads, besides :data:`FOR_ALL`. Their texts don't name the accelerator."""
    CHECKS: ClassVar[Sequence[Check]] = ()
    """What ``zc_doctor`` looks at for it."""
    IMPORTS: ClassVar[bool] = False
    """Whether its device reads the frames' own memory, which has to be dma-bufs then."""
    EVENTS: ClassVar[DriverEvents | None] = None
    """What its driver tells the kernel's trace of imports and jobs: what ``zc_verify`` measures of it."""
    AUTO: ClassVar[int | None] = None
    """Its place in the order of ``accelerator: auto``, the lowest first; ``None``: only who names it gets it."""
    DEVICE_FIRST: ClassVar[bool] = False
    """Whether a device that can't be used is worth saying before a model that doesn't fit. Opening it must keep nobody else from it."""

    @classmethod
    def own(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """What it reads of the inference node's parameters, each by its name; the default for one that is not among *values*."""
        specs = (*FOR_ALL, *cls.PARAMETERS)
        return {spec.name: values.get(spec.name, spec.default) for spec in specs}

    @classmethod
    def foreseen(cls, values: Mapping[str, Any], system: System) -> BufferConstraints | None:
        """What it would state of the frames and of how many it holds, as far as that is known without one: ``zc_doctor`` counts with it.

        :param values: as :meth:`own` has them.
        :returns: ``None``: it can't be used here.
        """
        return BufferConstraints('accelerator', slots=values['in_flight'] + 1)

    @classmethod
    def open(cls, values: Mapping[str, Any], ledger: CopyLedger) -> Accelerator:
        """Open the device. No model is loaded yet.

        :param values: as :meth:`own` has them; what changes later :meth:`tune` tells.
        :param ledger: books the passes of the CPU over pixels.
        :raises AcceleratorError: there is none, or it can't be used; the message says what works
            instead.
        """
        raise NotImplementedError(f'{cls.__name__} has no open()')

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it is."""

    @abstractmethod
    def constraints(self) -> BufferConstraints:
        """Buffers that it can import."""

    @abstractmethod
    def load(self, manifest: ModelManifest) -> None:
        """Make a model ready.

        :raises ConfigError: the model can't run here.
        """

    @abstractmethod
    def submit(self, handle: ImportHandle, frame: Frame) -> Job:
        """Start a job. The caller keeps *frame* until the job's fence has signalled.

        :raises AcceleratorError: the device refused.
        :raises DeviceLostError: the device is gone.
        """

    @abstractmethod
    def close(self) -> None:
        """End jobs in flight, release everything. Idempotent."""

    def trial_import(
        self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]
    ) -> Callable[[], None] | None:
        """Before the first frame: import one slot's buffers as :meth:`import_frame` will. Where imports are cached this one is kept.

        :returns: how to give back an import that was kept, for when nothing comes of the buffers.

        :raises AcceleratorError: it can't import them.
        """
        return None

    def import_frame(self, frame: Frame) -> ImportHandle:
        """Make the frame's buffers readable for the device.

        :raises AcceleratorError: it can't import them.
        :raises DeviceLostError: the device is gone.
        """
        return ImportHandle()

    def release(self, handle: ImportHandle) -> None:  # noqa: B027
        """Undo :meth:`import_frame`."""

    def notices(self) -> Sequence[str]:
        """Sentences that are worth saying once: what works less well than it could, and what to do about it. Known after :meth:`load`."""
        return ()

    def facts(self) -> Mapping[str, object]:
        """What is worth showing in diagnostics: device, driver, link, counters. Cheap, from any thread, after :meth:`close` too."""
        return {}

    def hot_threads(self) -> Sequence[threading.Thread]:
        """Its own threads that a frame waits for, for whoever sets their CPUs and priority; not those that compute: at a real-time priority
        they would keep everything else from their CPUs for as long as the model takes. Cheap, from
        any thread, after :meth:`close` too.
        """
        return ()

    def tidy(self) -> None:  # noqa: B027
        """Let go of buffers whose owners have given them up since. Cheap; for when there is nothing else to do."""

    def tune(self, values: Mapping[str, Any]) -> None:  # noqa: B027
        """Take over, between two frames, the values of its parameters that may change while it runs.

        :param values: as :meth:`own` has them.
        """

    @property
    def keeps_imports(self) -> bool:
        """Whether buffers that come again are not imported again."""
        return True

    @property
    def imports(self) -> int:
        """How many times buffers were really imported (cache hits don't count, nor do :attr:`trial_imports`)."""
        return 0

    @property
    def trial_imports(self) -> int:
        """How many imports were only on trial and given back at once; 0 where the cache keeps them."""
        return 0
