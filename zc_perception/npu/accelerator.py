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

    :param copy_free: whether the accelerator itself reads the frame's memory, so that the CPU
        makes no pass over the pixels.
    :param max_in_flight: the number of jobs that it accepts before the first of them has
        completed.
    :param may_hang: whether jobs that don't end show that the device hangs and must be opened
        anew; false for a CPU, which is only slow.
    :param on_card: whether the accelerator is a separate device, such as a PCI card, and not the
        CPU.
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

    :param number: the device's handle of the import; 0 if the accelerator imports nothing.
    :param cached: whether the accelerator's import cache owns the handle.
    """

    number: int = 0
    cached: bool = True


class Job(Protocol):
    """
    A submitted frame. Its owner ends it by exactly one of :meth:`close` and :meth:`abandon`.

    A job may have ``device_seqno``, the number (from 1) that the driver gave the job. It
    identifies the job in the kernel's trace events.
    """

    @property
    def fence(self) -> Fence:
        """The fence that signals when the result is ready or the job failed; the job owns it."""

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
        """The geometry that maps the result's pixel coordinates to the frame's."""

    def abandon(self) -> Fence:
        """
        Give the job up instead of closing it: its result is no longer wanted.

        The fence that is returned belongs to the caller. It signals when the device no longer uses
        the frame. :attr:`fence` signals when the device has ended the job. Then the device has
        room for another job, and the accelerator may reuse the result's memory. The two may be the
        same fence. If you want to wait for :attr:`fence` afterwards, duplicate its descriptor
        before this call.
        """

    def close(self) -> None:
        """
        Give the result's memory back and close the fence.

        The result's views are invalid then.
        """


def reads_by_cpu(participant: str) -> BufferConstraints:
    """Return the constraints of an accelerator for which the CPU reads the pixels."""
    formats, costs = tuple((fourcc, LINEAR) for fourcc in READABLE), tuple(READABLE.values())
    return BufferConstraints(participant, formats=formats, costs=costs, cpu_access=CpuAccess.READ)


def with_frames(constraints: BufferConstraints, in_flight: int, most: int) -> BufferConstraints:
    """
    Return an accelerator's constraints with the slots that inference holds.

    Inference holds one slot for each frame in flight, and one for the frame that waits.

    :param in_flight: the value of parameter ``in_flight``.
    :param most: the highest number of jobs that the accelerator accepts at the same time.
    """
    return replace(constraints, slots=min(in_flight, most) + 1)


class Accelerator(ABC):
    """
    One opened device.

    Derive from it, and register the class in :mod:`zc_perception.npu.kinds` or by an entry point.

    The class attributes declare the accelerator's name, engines and parameters; nodes, launch
    files, ``--help``, the schemas, ``zc_doctor`` and ``zc_verify`` read them. A new accelerator
    must define :meth:`open`,
    :meth:`capabilities`, :meth:`constraints`, :meth:`load`, :meth:`submit` and :meth:`close`. The
    other methods have defaults that fit an accelerator which imports no buffers: the CPU reads the
    frames.

    *Who owns what.* The scheduler owns the accelerator while it runs. Afterwards the code that
    opened it closes it. Each job belongs to the scheduler, which closes or abandons it. The frame
    stays leased until the job's fence has signalled.

    *Threads.* Only the scheduler's thread uses an accelerator. But any thread may call the methods
    that only read:
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
    """The values of a manifest's key ``engine`` that this accelerator runs, best first."""
    PARAMETERS: ClassVar[Sequence[ParameterSpec]] = ()
    """The inference node's parameters that this class reads, besides :data:`FOR_ALL`.

    Their texts don't name the accelerator."""
    CHECKS: ClassVar[Sequence[Check]] = ()
    """The checks of ``zc_doctor`` for this accelerator."""
    IMPORTS: ClassVar[bool] = False
    """Whether the device reads the frames' own memory, which must then be dma-bufs."""
    EVENTS: ClassVar[DriverEvents | None] = None
    """The driver's tracepoints of imports and jobs, for ``zc_verify``."""
    AUTO: ClassVar[int | None] = None
    """
    Its place in the order in which ``accelerator: auto`` tries accelerators; the lowest is first.

    ``None``: the accelerator is used only if the parameter names it.
    """
    DEVICE_FIRST: ClassVar[bool] = False
    """Whether a device that can't be used is reported before a model that doesn't fit.

    If so, opening the device must not keep other programs from using the device."""

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
        Return the constraints of :meth:`constraints`, as far as no device is needed to know them.

        The constraints say which frames the accelerator takes and how many slots it holds.
        ``zc_doctor`` calculates the pools' sizes from them.

        :param values: as :meth:`own` returns them.
        :returns: the constraints; ``None`` if the accelerator can't be used on this machine.
        """
        return BufferConstraints('accelerator', slots=values['in_flight'] + 1)

    @classmethod
    def open(cls, values: Mapping[str, Any], ledger: CopyLedger) -> Accelerator:  # noqa: A003
        """
        Open the device.

        No model is loaded yet.

        :param values: as :meth:`own` returns them; :meth:`tune` is called with values that change
            later.
        :param ledger: counts each pass of the CPU over pixels.
        :raises AcceleratorError: there is no such device, or it can't be used; the message says
            what to use instead.
        """
        raise NotImplementedError(f'{cls.__name__} has no open()')

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return what the accelerator can do."""

    @abstractmethod
    def constraints(self) -> BufferConstraints:
        """Return the constraints of the buffers that this accelerator can import."""

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
        """End the jobs in flight and release everything. A second call does nothing."""

    def trial_import(
        self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]
    ) -> Callable[[], None] | None:
        """
        Import one slot's buffers before the first frame, as :meth:`import_frame` will.

        An accelerator with an import cache keeps this import.

        :returns: a function that releases the kept import; call it if the buffers won't be used.

        :raises AcceleratorError: the device can't import them.
        """
        return None

    def import_frame(self, frame: Frame) -> ImportHandle:
        """
        Make the frame's buffers readable for the device.

        :raises AcceleratorError: the device can't import them.
        :raises DeviceLostError: the device is gone.
        """
        return ImportHandle()

    def release(self, handle: ImportHandle) -> None:  # noqa: B027
        """Undo :meth:`import_frame`."""

    def notices(self) -> Sequence[str]:
        """
        Return sentences to log once: what works less well than it could, and the remedy.

        The sentences are complete after :meth:`load`.
        """
        return ()

    def facts(self) -> Mapping[str, object]:
        """
        Return the values that diagnostics show: device, driver, PCIe link, counters.

        The call is cheap. Any thread may call it, after :meth:`close` too.
        """
        return {}

    def hot_threads(self) -> Sequence[threading.Thread]:
        """
        Return the accelerator's threads whose CPUs and real-time priority may be set.

        These are threads that a frame waits for. Threads that compute the model are left out,
        because at a real-time priority they would block all other threads on their CPUs while the
        model runs. The call is cheap. Any thread may call it, after
        :meth:`close` too.
        """
        return ()

    def tidy(self) -> None:  # noqa: B027
        """
        Release buffers whose owners have given them up.

        The call is cheap; the scheduler's thread makes it when it has no other work.
        """

    def tune(self, values: Mapping[str, Any]) -> None:  # noqa: B027
        """
        Apply, between two frames, values of parameters that may change at run time.

        :param values: as :meth:`own` returns them.
        """

    @property
    def keeps_imports(self) -> bool:
        """Whether imports are cached, so that each buffer is imported only once."""
        return True

    @property
    def imports(self) -> int:
        """
        Return how many imports of frames' buffers the device has made.

        Neither cache hits nor :attr:`trial_imports` count.
        """
        return 0

    @property
    def trial_imports(self) -> int:
        """
        Return how many trial imports were made and released at once.

        This is 0 if the accelerator has an import cache, because the cache keeps trial imports.
        """
        return 0
