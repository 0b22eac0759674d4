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
What a check of ``zc_doctor`` is, what it is asked for, and what it says.

The doctor has its own checks, and each kind of camera or accelerator declares checks of what it
needs.

How bad a finding is depends on which nodes need the thing that is missing or can't be used. The
parameter file says so (:class:`Need`):

- REQUIRED: the parameter file names it. The finding is a ``fail``: these nodes won't do what their
  file says.
- POSSIBLE: ``auto`` may take it, or there is no parameter file. The finding is a ``warn``:
  something else takes its place, or the use that needs it isn't possible; for software that most
  machines don't have, it is a ``skip``.
- UNUSED: the parameter file uses something else. The finding is a ``skip``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
import importlib
from typing import Any, TYPE_CHECKING

if TYPE_CHECKING:
    from zc_perception.machine.system import System

    CheckFunction = Callable[[System, 'Needs'], Iterable['Finding']]


class Status(Enum):
    """The verdict. ``SKIP``: does not apply here, and why."""

    OK = 'ok'
    WARN = 'warn'
    FAIL = 'fail'
    SKIP = 'skip'


class Need(Enum):
    """How much the parameter file needs a thing."""

    REQUIRED = 'required'
    POSSIBLE = 'possible'
    UNUSED = 'unused'

    @property
    def missing(self) -> Status:
        """The verdict on something that is missing, or can't be used."""
        return Status.WARN if self is Need.POSSIBLE else self.missing_extra

    @property
    def missing_extra(self) -> Status:
        """The same of software that most machines do without."""
        return Status.FAIL if self is Need.REQUIRED else Status.SKIP


@dataclass(frozen=True)
class Finding:
    """
    One line of the report.

    :param found: what is there, in one sentence without a full stop.
    :param advice: what to do; empty where there is nothing to do.
    :param subject: which device, heap or camera, where a check has several.
    :param figures: the same for programs: strings, numbers, booleans, ``None``, and lists and
        objects of them.
    """

    status: Status
    found: str
    advice: str = ''
    subject: str = ''
    figures: Mapping[str, Any] = field(default_factory=dict)


def ok(found: str, subject: str = '', /, **figures: Any) -> Finding:
    """Report that all is well."""
    return Finding(Status.OK, found, '', subject, figures)


def skip(found: str, subject: str = '', /, **figures: Any) -> Finding:
    """Report that the check does not apply; *found* says why."""
    return Finding(Status.SKIP, found, '', subject, figures)


def warn(found: str, advice: str, subject: str = '', /, **figures: Any) -> Finding:
    """Report that it works less well than it could, or that nothing asked for it."""
    return Finding(Status.WARN, found, advice, subject, figures)


def fail(found: str, advice: str, subject: str = '', /, **figures: Any) -> Finding:
    """Report that it doesn't work."""
    return Finding(Status.FAIL, found, advice, subject, figures)


def told(status: Status, error: object, subject: str = '', /, **figures: Any) -> Finding:
    """Report one of the package's own errors; what follows its last semicolon is advice."""
    found, _, advice = str(error).rpartition('; ')
    return Finding(status, found or advice, advice, subject, figures)


@dataclass(frozen=True)
class NodeNeed:
    """
    What one node is going to have.

    ``need['width']`` is the value of its parameter ``width``, by default the parameter's own
    default.

    :param node: its full name.
    :param chooses: the parameter that chooses its kind of camera or accelerator.
    :param values: all its parameters.
    """

    node: str
    chooses: str
    values: Mapping[str, Any]

    def __getitem__(self, parameter: str) -> Any:
        return self.values[parameter]

    @property
    def kind(self) -> str:
        """Its kind of camera or accelerator."""
        return str(self.values[self.chooses])

    @property
    def label(self) -> str:
        """For people: the node and its kind."""
        return f'{self.node} ({self.kind})'


@dataclass(frozen=True)
class Needs:
    """
    Everything that is asked.

    :param path: the parameter file; empty: none was given.
    :param cameras: one for each capture node.
    :param inferences: one for each inference node.
    :param cameras_given: whether these are all cameras, by ``--cameras``, not those that the file
        names.
    :param heaps: the heaps that cameras take their buffers from: names, or ``auto``.
    :param device_imports: whether a device has to import buffers, so that a memfd won't do.
    :param read_by_ros: whether the file's values are ROS's; ``False``: PyYAML's, as there is no
        ROS here.
    """

    path: str = ''
    cameras: tuple[NodeNeed, ...] = ()
    inferences: tuple[NodeNeed, ...] = ()
    cameras_given: bool = False
    heaps: tuple[str, ...] = ()
    device_imports: bool = False
    read_by_ros: bool = True

    @property
    def known(self) -> bool:
        """Whether there is a parameter file."""
        return bool(self.path)

    def cameras_of(self, *kinds: str) -> list[NodeNeed]:
        """Return the capture nodes with one of these kinds of cameras."""
        return [camera for camera in self.cameras if camera.kind in kinds]

    def camera(self, *kinds: str) -> Need:
        """Return which nodes need one of these kinds of cameras."""
        return self._need(bool(self.cameras_of(*kinds)))

    def accelerator(self, *kinds: str) -> Need:
        """Return which nodes need one of these kinds of accelerators."""
        wanted = [inference.kind for inference in self.inferences]
        asked = any(kind in wanted for kind in kinds)
        return Need.POSSIBLE if 'auto' in wanted and not asked else self._need(asked)

    def heap(self, name: str) -> Need:
        """Return which nodes need that heap."""
        asked = name in self.heaps
        return (
            Need.POSSIBLE
            if not asked and self.known and ('auto' in self.heaps or self.device_imports)
            else self._need(asked)
        )

    def namespaces(self) -> tuple[str, ...]:
        """Return the namespaces of all these nodes; empty: none."""
        nodes = [one.node for one in (*self.cameras, *self.inferences)]
        return tuple(dict.fromkeys(node.rpartition('/')[0] for node in nodes))

    def _need(self, asked: bool) -> Need:
        if not self.known:
            return Need.POSSIBLE
        return Need.REQUIRED if asked else Need.UNUSED

    def summary(self) -> str:
        """Return one line for people."""
        if not self.known:
            return 'no parameter file was given: every use is checked'
        parts = [camera.label for camera in self.cameras] + [
            f'{i.node} ({i.kind}, model {i["model"]})' for i in self.inferences
        ]
        how = '' if self.read_by_ros else ', read as plain YAML because ROS 2 is not here'
        return f'for {self.path}{how}: {", ".join(parts)}'


@dataclass(frozen=True)
class Check:
    """
    One check: at least one finding, more where it has several subjects.

    :param id: ``GROUP.NAME``. It stays, since programs may rely on it.
    :param about: what it looks at, in a few words.
    :param function: what it does, or its place as ``module:function``: that module is imported
        when the check runs.
    """

    id: str  # noqa: A003
    about: str
    function: CheckFunction | str

    @property
    def group(self) -> str:
        """What ``--only`` names. The checks of a group run one after the other."""
        return self.id.partition('.')[0]

    def run(self, system: System, needs: Needs) -> Iterable[Finding]:
        """Run the check and return what it finds."""
        function = self.function
        if isinstance(function, str):
            module, _, name = function.partition(':')
            function = getattr(importlib.import_module(module), name)
        return function(system, needs)
