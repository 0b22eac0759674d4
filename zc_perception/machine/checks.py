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
A check of ``zc_doctor``, its input (:class:`Needs`) and its result (:class:`Finding`).

The doctor has its own checks, and each kind of camera or accelerator declares checks of the
devices and libraries that it needs. If such a thing is missing or can't be used, the finding's
status depends on whether the parameter file needs the thing (:class:`Need`):

- REQUIRED: the parameter file names the thing. The status is ``fail``: nodes won't work as the
  file demands.
- POSSIBLE: ``auto`` may choose the thing, or there is no parameter file. The status is ``warn``:
  nodes use something else in its place, or can't do a part of their work. For software that most
  machines don't have, the status is ``skip``.
- UNUSED: the parameter file uses something else. The status is ``skip``.
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
    """The result of a check. ``SKIP``: the check does not apply; the finding says why."""

    OK = 'ok'
    WARN = 'warn'
    FAIL = 'fail'
    SKIP = 'skip'


class Need(Enum):
    """Whether the parameter file needs a device or library, see this module's docstring."""

    REQUIRED = 'required'
    POSSIBLE = 'possible'
    UNUSED = 'unused'

    @property
    def missing(self) -> Status:
        """The status of a finding about a thing that is missing or can't be used."""
        return Status.WARN if self is Need.POSSIBLE else self.missing_extra

    @property
    def missing_extra(self) -> Status:
        """The status of a finding about missing software that most machines don't have."""
        return Status.FAIL if self is Need.REQUIRED else Status.SKIP


@dataclass(frozen=True)
class Finding:
    """
    One line of the report.

    :param found: what the check found, in one sentence without a full stop.
    :param advice: what the user should do; empty if there is nothing to do.
    :param subject: the device, heap or camera that was checked, if a check examines several.
    :param figures: the finding as data for programs: strings, numbers, booleans, ``None``, and
        lists and objects of these.
    """

    status: Status
    found: str
    advice: str = ''
    subject: str = ''
    figures: Mapping[str, Any] = field(default_factory=dict)


def ok(found: str, subject: str = '', /, **figures: Any) -> Finding:
    """Make a finding with status OK."""
    return Finding(Status.OK, found, '', subject, figures)


def skip(found: str, subject: str = '', /, **figures: Any) -> Finding:
    """Make a finding of a check that does not apply; *found* gives the reason."""
    return Finding(Status.SKIP, found, '', subject, figures)


def warn(found: str, advice: str, subject: str = '', /, **figures: Any) -> Finding:
    """Make a finding about a thing that works badly, or can't be used but isn't required."""
    return Finding(Status.WARN, found, advice, subject, figures)


def fail(found: str, advice: str, subject: str = '', /, **figures: Any) -> Finding:
    """Make a finding about a required thing that doesn't work."""
    return Finding(Status.FAIL, found, advice, subject, figures)


def told(status: Status, error: object, subject: str = '', /, **figures: Any) -> Finding:
    """Make a finding about *error*; what follows the last semicolon of its text is the advice."""
    found, _, advice = str(error).rpartition('; ')
    return Finding(status, found or advice, advice, subject, figures)


@dataclass(frozen=True)
class NodeNeed:
    """
    The parameters that one node will have.

    ``need['width']`` is the value of the node's parameter ``width``, or the parameter's default if
    the file doesn't set it.

    :param node: the node's full name.
    :param chooses: the parameter that chooses the node's kind of camera or accelerator.
    :param values: the values of all parameters of the node.
    """

    node: str
    chooses: str
    values: Mapping[str, Any]

    def __getitem__(self, parameter: str) -> Any:
        return self.values[parameter]

    @property
    def kind(self) -> str:
        """The node's kind of camera or accelerator."""
        return str(self.values[self.chooses])

    @property
    def label(self) -> str:
        """The node and its kind, as text for people."""
        return f'{self.node} ({self.kind})'


@dataclass(frozen=True)
class Needs:
    """
    The parameters of all capture and inference nodes, and their source.

    :param path: the path of the parameter file; empty: none was given.
    :param cameras: the parameters of each capture node.
    :param inferences: the parameters of each inference node.
    :param cameras_given: whether ``cameras`` come from the option ``--cameras`` instead of the
        file.
    :param heaps: the heaps that cameras take their buffers from: names, or ``auto``.
    :param device_imports: whether a device has to import buffers, so that no memfd can be used.
    :param read_by_ros: whether ROS has read the file; ``False``: PyYAML has read it, because this
        machine has no ROS.
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
        """Return the parameters of the capture nodes with a camera of one of these kinds."""
        return [camera for camera in self.cameras if camera.kind in kinds]

    def camera(self, *kinds: str) -> Need:
        """Return whether the parameter file needs a camera of one of these kinds."""
        return self._need(bool(self.cameras_of(*kinds)))

    def accelerator(self, *kinds: str) -> Need:
        """Return whether the parameter file needs an accelerator of one of these kinds."""
        wanted = [inference.kind for inference in self.inferences]
        asked = any(kind in wanted for kind in kinds)
        return Need.POSSIBLE if 'auto' in wanted and not asked else self._need(asked)

    def heap(self, name: str) -> Need:
        """Return whether the parameter file needs heap *name*."""
        asked = name in self.heaps
        return (
            Need.POSSIBLE
            if not asked and self.known and ('auto' in self.heaps or self.device_imports)
            else self._need(asked)
        )

    def namespaces(self) -> tuple[str, ...]:
        """Return the namespaces of all capture and inference nodes, each once."""
        nodes = [one.node for one in (*self.cameras, *self.inferences)]
        return tuple(dict.fromkeys(node.rpartition('/')[0] for node in nodes))

    def _need(self, asked: bool) -> Need:
        if not self.known:
            return Need.POSSIBLE
        return Need.REQUIRED if asked else Need.UNUSED

    def summary(self) -> str:
        """Return one line for people: the parameter file, its nodes and their kinds."""
        if not self.known:
            return 'no parameter file was given, so all checks run'
        parts = [camera.label for camera in self.cameras] + [
            f'{i.node} ({i.kind}, model {i["model"]})' for i in self.inferences
        ]
        how = '' if self.read_by_ros else ', read as plain YAML because ROS 2 is not installed'
        return f'for {self.path}{how}: {", ".join(parts)}'


@dataclass(frozen=True)
class Check:
    """
    One check, which yields one finding; if it examines several devices, one for each device.

    :param id: ``GROUP.NAME``. It must not change, because programs may rely on it.
    :param about: what the check examines, in a few words, for the list of checks.
    :param function: the function to run, or its place as ``module:function``: the module is
        imported when the check runs.
    """

    id: str  # noqa: A003
    about: str
    function: CheckFunction | str

    @property
    def group(self) -> str:
        """The group, which ``--only`` can select; a group's checks run one after the other."""
        return self.id.partition('.')[0]

    def run(self, system: System, needs: Needs) -> Iterable[Finding]:
        """Run the check and return what it finds."""
        function = self.function
        if isinstance(function, str):
            module, _, name = function.partition(':')
            function = getattr(importlib.import_module(module), name)
        return function(system, needs)
