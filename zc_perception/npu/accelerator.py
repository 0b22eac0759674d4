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
from zc_perception.errors import one_line
from zc_perception.frame import Frame
from zc_perception.log import on_stderr
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
    An accelerator's names and abilities.

    :param device: the name of the card, or of the model's runtime.
    :param copy_free: whether the device itself reads the frame's memory, so that the CPU makes no
        pass over the pixels.
    :param max_in_flight: the number of jobs accepted before the first of them has completed.
    :param may_hang: whether the device counts as hanging, and is opened again, if its jobs don't
        end; false for a CPU, which is only slow.
    :param on_card: whether the device is separate from the CPU, such as a PCI card.
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
    The import of a frame's buffers, valid until the import is released.

    :param number: the device's handle of the import; 0 if the accelerator imports nothing.
    :param cached: whether the accelerator's import cache owns the handle.
    """

    number: int = 0
    cached: bool = True


class Job(Protocol):
    """
    A submitted frame. The job's owner must end the job by :meth:`close` or :meth:`abandon`.

    A job may have ``device_seqno``, the number (from 1) that the driver gave the job. It
    identifies the job in the kernel's trace events.
    """

    @property
    def fence(self) -> Fence:
        """The fence that signals when the result is ready or the job failed; the job owns it."""

    def outputs(self) -> Outputs:
        """
        Return the raw result; call this once :attr:`fence` has signalled success.

        The tensors are views, valid until :meth:`close`. The CPU's access to their memory
        (DMA_BUF_IOCTL_SYNC) begins here and ends with :meth:`close`.

        :raises AcceleratorError: the job failed.
        :raises DeviceLostError: the device failed; all its other jobs fail too.
        """

    @property
    def letterbox(self) -> Letterbox:
        """The geometry that maps the result's pixel coordinates to the frame's."""

    def abandon(self) -> Fence:
        """
        Give the job up instead of closing it, because its result is no longer wanted.

        The returned fence belongs to the caller. It signals when the device no longer uses the
        frame. :attr:`fence`, which may be the same fence, signals when the device has ended the
        job; only then has the device room for another job, and the accelerator may reuse the
        result's memory. To wait for :attr:`fence` later, duplicate its descriptor before this
        call.
        """

    def close(self) -> None:
        """Give the result's memory back and close the fence; the result's views become invalid."""


def reads_by_cpu(participant: str) -> BufferConstraints:
    """Return the constraints of accelerator *participant*, for which the CPU reads the frames."""
    formats, costs = tuple((fourcc, LINEAR) for fourcc in READABLE), tuple(READABLE.values())
    return BufferConstraints(participant, formats=formats, costs=costs, cpu_access=CpuAccess.READ)


def with_frames(constraints: BufferConstraints, in_flight: int, most: int) -> BufferConstraints:
    """
    Add to an accelerator's constraints the number of slots that an inference node holds.

    The node holds one slot for each frame in flight, and one for the next frame, which waits.

    :param in_flight: the value of parameter ``in_flight``.
    :param most: the highest number of jobs that the accelerator accepts at the same time.
    """
    return replace(constraints, slots=min(in_flight, most) + 1)


class Accelerator(ABC):
    """
    One opened device.

    To add an accelerator, derive a class from this one, and register it in
    :mod:`zc_perception.npu.kinds` or by an entry point. The class attributes declare its engines
    and parameters; nodes, launch files, ``--help``, the schemas, ``zc_doctor`` and ``zc_verify``
    read them. The class must define :meth:`open`, :meth:`capabilities`, :meth:`constraints`,
    :meth:`load`, :meth:`submit` and :meth:`close`. The other methods have defaults that fit an
    accelerator which imports no buffers: the CPU reads the frames.

    *Ownership.* The scheduler owns the accelerator while the scheduler runs; afterwards the code
    that opened the accelerator closes it. The scheduler closes or abandons each job. A frame stays
    leased until its job has ended, or until the fence that :meth:`Job.abandon` returned has
    signalled.

    *Threads.* Only the scheduler's thread uses an accelerator. But any thread may call the methods
    that only read: :meth:`capabilities`, :meth:`notices`, :meth:`facts`, :meth:`hot_threads`, and
    the counters.

    *Order of calls.* ``open``, ``constraints``, ``load``, ``trial_import`` of each buffer; then
    for each frame ``import_frame``, ``submit`` and, when its job has ended, ``release``; at the
    end ``close``.

    A device that is gone or hangs raises :class:`DeviceLostError` from :meth:`import_frame` or
    :meth:`submit`, or its jobs fail with that error. Then the scheduler abandons or closes the
    jobs, closes the accelerator, and opens a new one, which shares no import with the old one. On
    a dead device, abandoning and closing must still work.
    """

    ENGINES: ClassVar[Sequence[EngineRules]] = ()
    """The engines whose models this accelerator runs, best first.

    A manifest names its model's engine in key ``engine``."""
    PARAMETERS: ClassVar[Sequence[ParameterSpec]] = ()
    """The inference node's parameters that this class reads, besides :data:`FOR_ALL`.

    Their descriptions leave out the accelerator's name; whoever shows a description adds it."""
    CHECKS: ClassVar[Sequence[Check]] = ()
    """The checks of ``zc_doctor`` for this accelerator."""
    IMPORTS: ClassVar[bool] = False
    """Whether the device reads the frames' own memory, which must then be dma-bufs."""
    EVENTS: ClassVar[DriverEvents | None] = None
    """The driver's tracepoints of imports and jobs, for ``zc_verify``."""
    AUTO: ClassVar[int | None] = None
    """
    This class's place in the order in which ``accelerator: auto`` tries classes; lowest first.

    ``None``: the accelerator is used only if the parameter names it.
    """
    DEVICE_FIRST: ClassVar[bool] = False
    """Whether to open the device before checking the model, to report the device's error first.

    Set it only for devices that other programs can use while this accelerator has them open."""

    @classmethod
    def own(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return this class's parameters; those that *values* lacks get their default values."""
        specs = (*FOR_ALL, *cls.PARAMETERS)
        return {spec.name: values.get(spec.name, spec.default) for spec in specs}

    @classmethod
    def foreseen(cls, values: Mapping[str, Any], system: System) -> BufferConstraints | None:
        """
        Return the constraints to expect from :meth:`constraints`, without opening an accelerator.

        They say which frames the accelerator takes and how many slots it holds. ``zc_doctor``
        calculates the pools' sizes from them.

        :param values: as :meth:`own` returns them.
        :returns: the constraints; ``None`` if the accelerator can't be used on this machine.
        """
        return BufferConstraints('accelerator', slots=values['in_flight'] + 1)

    @classmethod
    def open(cls, values: Mapping[str, Any], ledger: CopyLedger) -> Accelerator:  # noqa: A003
        """
        Open the device, without a model.

        :param values: as :meth:`own` returns them; if they change later, :meth:`tune` gets the new
            ones.
        :param ledger: counts how often the CPU reads or writes pixels, and the bytes.
        :raises AcceleratorError: there is no such device, or it can't be used; the message says
            what to use instead.
        """
        raise NotImplementedError(f'{cls.__name__} has no open()')

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return the device's name, its limits, and whether it reads frames without a copy."""

    @abstractmethod
    def constraints(self) -> BufferConstraints:
        """Return what a buffer must offer, so that this accelerator can use it."""

    @abstractmethod
    def load(self, manifest: ModelManifest) -> None:
        """
        Load a model, so that frames can be submitted.

        :raises ConfigError: this accelerator can't run the model.
        """

    @abstractmethod
    def submit(self, handle: ImportHandle, frame: Frame) -> Job:
        """
        Start a job. The caller keeps *frame* leased until the job's fence has signalled.

        :raises AcceleratorError: the device refused the job.
        :raises DeviceLostError: the device is gone.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the device; the caller has closed or abandoned all jobs before. Idempotent."""

    def trial_import(
        self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]
    ) -> Callable[[], None] | None:
        """
        Import one slot's buffers before the first frame, to test whether the device can read them.

        An accelerator with an import cache keeps this import for :meth:`import_frame`.

        :returns: a function that releases the kept import, to call if the buffers won't be used;
            ``None`` if no import is kept.
        :raises AcceleratorError: the device can't import the buffers.
        """
        return None

    def import_frame(self, frame: Frame) -> ImportHandle:
        """
        Import the frame's buffers, so that the device can read them.

        :raises AcceleratorError: the device can't import them.
        :raises DeviceLostError: the device is gone.
        """
        return ImportHandle()

    def release(self, handle: ImportHandle) -> None:  # noqa: B027
        """Release an import that :meth:`import_frame` made, unless the import cache owns it."""

    def notices(self) -> Sequence[str]:
        """
        Return warnings to log once: each names a limit of this device or setup, and the remedy.

        The list is complete after :meth:`load`.
        """
        return ()

    def facts(self) -> Mapping[str, object]:
        """
        Return the values that diagnostics show: device, driver, PCIe link, counters.

        The call is cheap. Any thread may call it, also after :meth:`close`.
        """
        return {}

    def hot_threads(self) -> Sequence[threading.Thread]:
        """
        Return the accelerator's threads that may get CPUs of their own and a real-time priority.

        Each frame waits for these threads. Threads that compute the model are left out: at a
        real-time priority they would block all other threads on their CPUs while the model runs.
        The call is cheap. Any thread may call it, also after :meth:`close`.
        """
        return ()

    def tidy(self) -> None:  # noqa: B027
        """
        Release the imports of closed buffers, and the memory of given-up jobs that have ended.

        The call is cheap. The scheduler's thread calls this when it has no other work.
        """

    def tune(self, values: Mapping[str, Any]) -> None:  # noqa: B027
        """
        Apply new values of parameters that may change at run time; called between two frames.

        :param values: as :meth:`own` returns them.
        """

    @property
    def keeps_imports(self) -> bool:
        """Whether imports are cached, so that each buffer is imported only once."""
        return True

    @property
    def imports(self) -> int:
        """The number of imports for frames; cache hits and :attr:`trial_imports` don't count."""
        return 0

    @property
    def trial_imports(self) -> int:
        """The number of trial imports released right after the trial; 0 if a cache keeps them."""
        return 0


def close_accelerator(accelerator: Accelerator) -> None:
    """Close an accelerator; report an error, but don't raise it: the caller's work goes on."""
    try:
        accelerator.close()
    except (Exception, SystemExit) as error:  # another package may raise anything
        on_stderr(f'{type(accelerator).__qualname__}.close failed: {one_line(error)}')
