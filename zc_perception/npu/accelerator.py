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

"""The interface that all accelerators share: read :class:`Accelerator`, then :class:`Job`."""

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
from zc_perception.npu.kinds import DriverEvents, FOR_ALL
from zc_perception.npu.manifest import EngineRules, ModelManifest
from zc_perception.parameters import ParameterSpec
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import LINEAR
from zc_perception.pixel.readable import READABLE

Outputs = Sequence[RawTensor]


@dataclass(frozen=True)
class Capabilities:
    """
    What an accelerator can do.

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
    """
    An imported frame buffer, valid until released.

    :param number: the device's handle; 0 where nothing has to be imported.
    :param cached: the accelerator's import cache owns it.
    """

    number: int = 0
    cached: bool = True


class Job(Protocol):
    """
    A submitted frame. Its owner ends it by exactly one of :meth:`close` and :meth:`abandon`.

    A job may have ``device_seqno``, the driver's own number of it (from 1), by which it is found
    again among the kernel's events.
    """

    @property
    def fence(self) -> Fence:
        """Signals when the result is there, or when the job failed. The job owns it."""

    def outputs(self) -> Outputs:
        """
        Return the raw result, once the fence has signalled success.

        These are views that are valid until :meth:`close`. The CPU's access to the result's memory
        (DMA_BUF_IOCTL_SYNC) begins here and ends with :meth:`close`.

        :raises AcceleratorError: the job failed.
        :raises DeviceLostError: the device failed, and every other job with it.
        """

    @property
    def letterbox(self) -> Letterbox:
        """Geometry between the frame and the result's pixels."""

    def abandon(self) -> Fence:
        """
        Give the job up instead of closing it: its result is no longer wanted.

        The fence that is returned belongs to the caller. It signals when the device no longer uses
        the frame. :attr:`fence` signals when the device has ended the job. Then the job's place on
        the device is free, and the accelerator has the result's memory again. The two may be the
        same fence. If you want to wait for :attr:`fence` afterwards, duplicate its descriptor
        before this call.
        """

    def close(self) -> None:
        """Give the result's memory and the fence back."""


def reads_by_cpu(participant: str) -> BufferConstraints:
    """Return the constraints of an accelerator for which the CPU reads the pixels."""
    formats, costs = tuple((fourcc, LINEAR) for fourcc in READABLE), tuple(READABLE.values())
    return BufferConstraints(participant, formats=formats, costs=costs, cpu_access=CpuAccess.READ)


def with_frames(constraints: BufferConstraints, in_flight: int, most: int) -> BufferConstraints:
    """
    Return an accelerator's constraints with the slots that inference holds.

    These are the frames in flight, and the one that waits.

    :param in_flight: the value of parameter ``in_flight``.
    :param most: jobs that the accelerator takes at the same time.
    """
    return replace(constraints, slots=min(in_flight, most) + 1)


class Accelerator(ABC):
    """
    One opened device.

    Derive from it, and register the class in :mod:`zc_perception.npu.kinds` or by an entry point.

    The class first declares what others need to know; nodes, launch files, ``--help``, the
    schemas,
    ``zc_doctor`` and ``zc_verify`` read it. A new accelerator must define :meth:`open`,
    :meth:`capabilities`, :meth:`constraints`, :meth:`load`, :meth:`submit` and :meth:`close`. The
    other methods have defaults that fit an accelerator which imports no buffers: the CPU reads the
    frames.

    *Who owns what.* The scheduler owns the accelerator while it runs. Afterwards the code that
    opened it closes it. Each job belongs to the scheduler, which closes or abandons it. The frame
    stays leased until the job's fence has signalled.

    *Threads.* One thread uses it, the scheduler's. Any thread may call what only reads:
    :meth:`capabilities`, :meth:`notices`, :meth:`facts`, :meth:`hot_threads`, the counters.

    *In what order.* ``open``, ``constraints``, ``load``, ``trial_import`` of each buffer, then for
    each frame ``import_frame``, ``submit`` and, when its job has ended, ``release``; at the end
    ``close``.

    A device that is gone or hangs raises :class:`DeviceLostError` from :meth:`import_frame` or
    :meth:`submit`, or its jobs fail with that error. After that only two things are left to do:
    abandon or close the jobs, and :meth:`close` the accelerator. Both work on a dead device. A new
    accelerator is opened in its place, and shares no import with the old one.
    """

    ENGINES: ClassVar[Sequence[EngineRules]] = ()
    """What may stand in a manifest as ``engine`` for it, best first."""
    PARAMETERS: ClassVar[Sequence[ParameterSpec]] = ()
    """The inference node's parameters that it reads, besides :data:`FOR_ALL`.

    Their texts don't name the accelerator."""
    CHECKS: ClassVar[Sequence[Check]] = ()
    """What ``zc_doctor`` looks at for it."""
    IMPORTS: ClassVar[bool] = False
    """Whether its device reads the frames' own memory, which has to be dma-bufs then."""
    EVENTS: ClassVar[DriverEvents | None] = None
    """What its driver tells the kernel's trace about imports and jobs, for ``zc_verify``."""
    AUTO: ClassVar[int | None] = None
    """Its place in the order of ``accelerator: auto``, the lowest first.

    ``None``: it runs only where the parameter names it."""
    DEVICE_FIRST: ClassVar[bool] = False
    """Whether a device that can't be used is reported before a model that doesn't fit.

    If so, opening the device must keep no other program from using it."""

    @classmethod
    def own(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """
        Return the inference node's parameters that this class reads, by name.

        A parameter that is not among *values* has its default.
        """
        specs = (*FOR_ALL, *cls.PARAMETERS)
        return {spec.name: values.get(spec.name, spec.default) for spec in specs}

    @classmethod
    def foreseen(cls, values: Mapping[str, Any], system: System) -> BufferConstraints | None:
        """
        Return the constraints that it would state, as far as they are known without a device.

        They say which frames it takes and how many it holds. ``zc_doctor`` counts with them.

        :param values: as :meth:`own` returns them.
        :returns: ``None``: it can't be used here.
        """
        return BufferConstraints('accelerator', slots=values['in_flight'] + 1)

    @classmethod
    def open(cls, values: Mapping[str, Any], ledger: CopyLedger) -> Accelerator:  # noqa: A003
        """
        Open the device.

        No model is loaded yet.

        :param values: as :meth:`own` returns them; :meth:`tune` tells what changes later.
        :param ledger: books the passes of the CPU over pixels.
        :raises AcceleratorError: there is none, or it can't be used; the message says what works
            instead.
        """
        raise NotImplementedError(f'{cls.__name__} has no open()')

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return what the accelerator can do."""

    @abstractmethod
    def constraints(self) -> BufferConstraints:
        """Return the constraints of buffers that it can import."""

    @abstractmethod
    def load(self, manifest: ModelManifest) -> None:
        """
        Make a model ready.

        :raises ConfigError: the model can't run here.
        """

    @abstractmethod
    def submit(self, handle: ImportHandle, frame: Frame) -> Job:
        """
        Start a job. The caller keeps *frame* until the job's fence has signalled.

        :raises AcceleratorError: the device refused.
        :raises DeviceLostError: the device is gone.
        """

    @abstractmethod
    def close(self) -> None:
        """End jobs in flight, release everything. Idempotent."""

    def trial_import(
        self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]
    ) -> Callable[[], None] | None:
        """
        Import one slot's buffers before the first frame, as :meth:`import_frame` will.

        Where imports are cached this one is kept.

        :returns: a call that gives back an import that was kept, in case the buffers are not used.

        :raises AcceleratorError: it can't import them.
        """
        return None

    def import_frame(self, frame: Frame) -> ImportHandle:
        """
        Make the frame's buffers readable for the device.

        :raises AcceleratorError: it can't import them.
        :raises DeviceLostError: the device is gone.
        """
        return ImportHandle()

    def release(self, handle: ImportHandle) -> None:  # noqa: B027
        """Undo :meth:`import_frame`."""

    def notices(self) -> Sequence[str]:
        """
        Return sentences to say once: what works less well than it could, and the remedy.

        They are known after :meth:`load`.
        """
        return ()

    def facts(self) -> Mapping[str, object]:
        """
        Return what diagnostics show: device, driver, link, counters.

        The call is cheap. Any thread may call it, after :meth:`close` too.
        """
        return {}

    def hot_threads(self) -> Sequence[threading.Thread]:
        """
        Return its own threads that a frame waits for; their CPUs and priority may be set.

        Threads that compute are not among them: at a real-time priority they would keep everything
        else
        from their CPUs for as long as the model takes. The call is cheap. Any thread may call it,
        after
        :meth:`close` too.
        """
        return ()

    def tidy(self) -> None:  # noqa: B027
        """
        Release buffers whose owners have given them up.

        The call is cheap; the scheduler makes it when there is nothing else to do.
        """

    def tune(self, values: Mapping[str, Any]) -> None:  # noqa: B027
        """
        Take over, between two frames, values that may change while it runs.

        :param values: as :meth:`own` returns them.
        """

    @property
    def keeps_imports(self) -> bool:
        """Whether it keeps imports, so that a buffer that comes again is not imported again."""
        return True

    @property
    def imports(self) -> int:
        """
        Return how many times buffers were really imported.

        Neither cache hits nor :attr:`trial_imports` count.
        """
        return 0

    @property
    def trial_imports(self) -> int:
        """
        Return how many imports were made on trial and given back at once.

        0 where the cache keeps them.
        """
        return 0
