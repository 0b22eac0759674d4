"""What the parameter file asks of the machine; without one, everything may be asked.

Read :class:`Needs` first: every check gets it, and asks it how bad it is that something is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zc_perception.machine.finding import Need


@dataclass(frozen=True)
class NodeNeed:
    """What one node is going to have: ``need['width']`` is the value of its parameter ``width``, by default the parameter's own.

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
    """Everything that is asked.

    :param path: the parameter file; empty: none was given.
    :param cameras: one for each capture node.
    :param inferences: one for each inference node.
    :param cameras_given: whether these are all cameras, by ``--cameras``, not those that the file names.
    :param heaps: the heaps that cameras take their buffers from: names, or ``auto``.
    :param device_imports: whether a device has to import buffers, so that a memfd won't do.
    :param read_by_ros: whether the file's values are ROS's; ``False``: PyYAML's, as there is no ROS here.
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
        """The capture nodes with one of these kinds of cameras."""
        return [camera for camera in self.cameras if camera.kind in kinds]

    def camera(self, *kinds: str) -> Need:
        """Who needs one of these kinds of cameras."""
        return self._need(bool(self.cameras_of(*kinds)))

    def accelerator(self, *kinds: str) -> Need:
        """Who needs one of these kinds of accelerators."""
        wanted = [inference.kind for inference in self.inferences]
        asked = any(kind in wanted for kind in kinds)
        return Need.POSSIBLE if 'auto' in wanted and not asked else self._need(asked)

    def heap(self, name: str) -> Need:
        """Who needs that heap."""
        asked = name in self.heaps
        return (
            Need.POSSIBLE
            if not asked and self.known and ('auto' in self.heaps or self.device_imports)
            else self._need(asked)
        )

    def namespaces(self) -> tuple[str, ...]:
        """Of all these nodes; empty: none."""
        nodes = [one.node for one in (*self.cameras, *self.inferences)]
        return tuple(dict.fromkeys(node.rpartition('/')[0] for node in nodes))

    def _need(self, asked: bool) -> Need:
        if not self.known:
            return Need.POSSIBLE
        return Need.REQUIRED if asked else Need.UNUSED

    def summary(self) -> str:
        """One line for people."""
        if not self.known:
            return 'no parameter file was given: every use is checked'
        parts = [camera.label for camera in self.cameras] + [
            f'{i.node} ({i.kind}, model {i["model"]})' for i in self.inferences
        ]
        how = '' if self.read_by_ros else ', read as plain YAML because ROS 2 is not here'
        return f'for {self.path}{how}: {", ".join(parts)}'
