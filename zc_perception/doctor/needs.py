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
Find what a parameter file requires of the machine, and how large the cameras' buffer pools are.

This module doesn't use ROS.

:func:`read_needs` returns the nodes and their values, for all checks. :func:`pool_need` computes a
camera's pool: it makes the same :class:`~zc_perception.negotiation.session.BufferSession` as the
capture node, with the same participants: the camera, inference nodes of the same process, and the
stand-ins of parameter ``participants``. A stand-in is the constraints of a consumer that may start
later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
import os
from typing import Any

from zc_perception.camera.camera import Camera, Known, offered_heaps
from zc_perception.camera.kinds import CAMERAS
from zc_perception.errors import AllocationError, ConfigError, NegotiationError
from zc_perception.machine.checks import Needs, NodeNeed
from zc_perception.machine.system import System
from zc_perception.memory.heaps import HeapUse, is_contiguous
from zc_perception.negotiation.agreement import slots_of
from zc_perception.negotiation.constraints import BufferConstraints, NO_CPU, parse_stand_ins, Size
from zc_perception.negotiation.session import BufferSession, Consumer
from zc_perception.negotiation.settings import BufferSettings, violations
from zc_perception.nodes.command_lines import check_cameras
from zc_perception.nodes.declarations import NODES
from zc_perception.nodes.params.yaml_file import (
    nodes_named,
    read_parameter_yaml,
    Section,
    values_of,
)
from zc_perception.npu.accelerator import Accelerator
from zc_perception.npu.kinds import ACCELERATORS
from zc_perception.npu.selection import candidates


def camera_class(camera: NodeNeed) -> type[Camera]:
    """Return the class of a node's camera; the base class if the class can't be imported."""
    try:
        return CAMERAS.load(camera.kind)
    except ConfigError:  # the check ``cameras.configured`` reports this failure
        return Camera


def node_need(kind: str, values: Mapping[str, Any], node: str = '') -> NodeNeed:
    """
    Return a node's parameters: the valid ones of *values*, and defaults for all others.

    The check ``parameters.file`` reports invalid values.

    :param kind: ``capture`` or ``inference``.
    :param node: the node's full name.
    """
    taken: dict[str, Any] = {}
    specs = NODES[kind]
    for spec in specs:
        taken[spec.name] = spec.default
        if spec.name in values:
            try:
                taken[spec.name] = spec.convert(values[spec.name])
            except ConfigError:
                if spec is specs.own[0] and isinstance(values[spec.name], str):
                    # Keep the name of an unknown kind of camera or accelerator, so that another
                    # check can report it.
                    taken[spec.name] = values[spec.name]
    return NodeNeed(node or f'/{kind}', specs.own[0].name, taken)


def _heap_use(camera: NodeNeed) -> HeapUse | None:
    with suppress(Exception):  # pool_need() raises the same error later, and a check reports it
        return camera_class(camera).heap_use(camera.values)
    return None


def needs_for(
    path: str,
    cameras: Sequence[NodeNeed],
    inferences: Sequence[NodeNeed],
    *,
    cameras_given: bool = False,
) -> Needs:
    """Return what these capture and inference nodes need; *path* is their parameter file."""
    uses = [(camera['heap'], _heap_use(camera)) for camera in cameras]
    heaps = dict.fromkeys(heap for heap, use in uses if use is not None)
    importing = {name for name, kind in ACCELERATORS.declared.classes.items() if kind.IMPORTS}
    imports = any(i.kind in importing for i in inferences) or any(
        use is HeapUse.CAMERA_IMPORT for _, use in uses
    )
    return Needs(path, tuple(cameras), tuple(inferences), cameras_given, tuple(heaps), imports)


def needs_of(sections: Sequence[Section], path: str, cameras: Sequence[str] = ()) -> Needs:
    """Return the requirements of *cameras*' nodes; without *cameras*, of all nodes in the file."""

    def found(kind: str) -> list[NodeNeed]:
        nodes = [f'/{name}/{kind}' for name in cameras] or list(
            dict.fromkeys(nodes_named(kind, sections))
        )
        return [node_need(kind, values_of(node, sections), node) for node in nodes or [f'/{kind}']]

    return needs_for(path, found('capture'), found('inference'), cameras_given=bool(cameras))


def read_needs(path: str | None, cameras: Sequence[str] = ()) -> Needs:
    """
    Return what the nodes of a parameter file need; ConfigError: the file can't be read.

    :param path: the file; ``None``: there is none.
    """
    check_cameras(cameras, '--cameras')
    if path is None:
        if cameras:
            raise ConfigError('--cameras needs --params-file, which says what these cameras are')
        return Needs()
    file = read_parameter_yaml(path)
    return replace(needs_of(file.sections, path, cameras), read_by_ros=file.by_rcl)


def _namespace(node: str) -> str:
    return node.rpartition('/')[0]


def beside(needs: Needs, camera: NodeNeed) -> list[NodeNeed]:
    """
    Return the inference nodes in the camera's namespace.

    If there are none, return the inference nodes whose namespace has no camera at all.
    """
    own = [
        inference
        for inference in needs.inferences
        if _namespace(inference.node) == _namespace(camera.node)
    ]
    spaces = {_namespace(one.node) for one in needs.cameras}
    return own or [
        inference for inference in needs.inferences if _namespace(inference.node) not in spaces
    ]


def _of_accelerator(system: System, inference: NodeNeed) -> BufferConstraints:
    for name in candidates(inference.kind):
        # Ignore an accelerator whose package can't be imported: the check model.load reports it.
        with suppress(ConfigError):
            kind: type[Accelerator] = ACCELERATORS.load(name)
            foreseen = kind.foreseen(kind.own(inference.values), system)
            if foreseen is not None:
                return foreseen
    return BufferConstraints(inference.kind, slots=inference['in_flight'] + 1)


def counting_only(constraints: BufferConstraints) -> BufferConstraints:
    """
    Return only the constraints on slots, alignments and sizes.

    The other constraints can't be checked while the camera's formats are unknown.
    """
    return replace(
        constraints,
        formats=None,
        costs=None,
        placement=None,
        heaps=None,
        contiguous=False,
        devices=(),
        cpu_access=NO_CPU,
    )


def anywhere(constraints: BufferConstraints) -> BufferConstraints:
    """Return *constraints* without those on memory, for a camera whose memory is unknown."""
    return replace(constraints, heaps=None, contiguous=False, devices=())


_NOBODY_KNOWS = (0, 0)
_PAGE = os.sysconf('SC_PAGE_SIZE')


@dataclass(frozen=True)
class PoolNeed:
    """
    The memory that one camera's pool needs.

    :param memory: the heap's name, or a text about the memory of a camera with its own buffers.
    :param contiguous: whether the memory is the kernel's CMA memory; ``None``: unknown,
        because the driver chooses.
    :param size: width and height in pixels.
    :param buffers: the bytes of each buffer of a slot, rounded up to pages; empty if unknown.
    :param problem: why the size is unknown.
    :param refusal: the negotiation's error if there can be no such pool; else empty.
    :param misfits: for each accelerator that can't use such buffers, the reason.
    :param agreed: a description of the agreed buffers; empty if only their number is known.
    """

    camera: NodeNeed
    memory: str
    contiguous: bool | None
    size: Size = _NOBODY_KNOWS
    slots: int = 0
    buffers: tuple[int, ...] = ()
    problem: str = ''
    refusal: str = ''
    misfits: tuple[str, ...] = ()
    agreed: str = ''

    @property
    def slot_bytes(self) -> int:
        """The bytes of one slot; 0 if unknown."""
        return sum(self.buffers)

    @property
    def total(self) -> int:
        """The bytes of the whole pool."""
        return self.slots * self.slot_bytes

    def in_heap(self, name: str) -> PoolNeed:
        """Return a copy of this object for a pool in the heap *name*."""
        return replace(self, memory=name, contiguous=is_contiguous(name))

    def of(self, slots: int, buffers: Sequence[int]) -> PoolNeed:
        """Return a copy for a pool of *slots* slots, each with buffers of these sizes in bytes."""
        return replace(
            self, slots=slots, buffers=tuple(-(-size // _PAGE) * _PAGE for size in buffers)
        )


class _Consumers:
    """
    All participants in the negotiation except the camera.

    :param stand_ins: the constraints of consumers that may start later.
    :param wanted: the minimum number of slots of the pool.
    :ivar known: the facts that the camera gave to :meth:`agree`.
    :ivar misfits: for each accelerator that can't use the agreed buffers, the reason.
    """

    def __init__(
        self,
        accelerators: Sequence[BufferConstraints],
        stand_ins: Sequence[BufferConstraints],
        wanted: int,
    ) -> None:
        self._accelerators = accelerators
        self._stand_ins = stand_ins
        self._wanted = wanted
        self.known: Known | None = None
        self.misfits: tuple[str, ...] = ()

    def agree(self, known: Known) -> BufferSettings:
        """
        Return the buffers that the capture node will request from the camera.

        Other checks test the accelerators' formats and memory with real buffers. So an accelerator
        that can't use the buffers only because of their format or memory is left out, and holds
        no slot.

        :raises NegotiationError: no buffers meet the constraints of the camera and all stand-ins,
            or an accelerator's constraints on slots, alignments and sizes.
        """
        self.known = known
        session = BufferSession(
            known.constraints,
            known.size,
            wanted_slots=self._wanted,
            stand_ins=[_counting(one, known) for one in self._stand_ins],
        )
        request, refused = session.plan(
            [Consumer(_counting(one, known)) for one in self._accelerators]
        )
        _, impossible = session.plan([Consumer(counting_only(one.constraints)) for one in refused])
        if impossible:
            raise NegotiationError(
                '; '.join(
                    f'{one.constraints.participant}: {outcome.reason}'
                    for one, outcome in impossible.items()
                )
            )
        self.misfits = tuple(
            f'{one.constraints.participant}: {outcome.reason}' for one, outcome in refused.items()
        )
        return request.settings()

    def refusal(self, given: BufferSettings) -> str:
        """
        Return why a consumer that may start later can't use buffers with the settings *given*.

        The text is empty if all such consumers (the stand-ins) can use them.
        """
        assert self.known is not None, 'agree() was called before'
        stand_ins = [_counting(one, self.known) for one in self._stand_ins]
        broken = [
            f'{one.participant}: {"; ".join(found)}'
            for one in stand_ins
            if (found := violations(one, given))
        ]
        return f"the driver's frames do not suit {'; '.join(broken)}" if broken else ''

    def slots(self, held: int) -> int:
        """Return the pool's number of slots, if the camera itself holds *held* of them."""
        return slots_of(
            [BufferConstraints('camera', slots=held), *self._accelerators, *self._stand_ins],
            self._wanted,
        )


def _counting(consumer: BufferConstraints, known: Known) -> BufferConstraints:
    """Return those constraints of *consumer* that can be checked with the facts *known*."""
    if not known.formats:
        return counting_only(consumer)
    return consumer if known.memory else anywhere(consumer)


def pool_need(system: System, needs: Needs, camera: NodeNeed) -> PoolNeed:
    """Compute the memory that one camera's pool needs, as its capture node would negotiate it."""
    kind = camera_class(camera)
    declared = {spec.name for spec in kind.PARAMETERS}
    brought = camera['pipeline_buffers'] if 'pipeline_buffers' in declared else 0
    wanted = max(camera['slots'], brought)
    need = PoolNeed(camera, kind.MEMORY, None, slots=max(wanted, 0))
    use = kind.heap_use(camera.values)
    try:
        heaps = None if use is None else offered_heaps(system, camera['heap'], use)
        accelerators = [_of_accelerator(system, inference) for inference in beside(needs, camera)]
        consumers = _Consumers(accelerators, parse_stand_ins(camera['participants']), wanted)
    except AllocationError as error:  # the heap is missing; the check memory.heaps reports it
        return replace(
            need, memory='a heap that does not exist', contiguous=False, problem=str(error)
        )
    except (ConfigError, NegotiationError) as error:
        return replace(need, problem='the consumers are not known', refusal=str(error))
    if heaps is not None:
        need = need.in_heap(heaps.name)
    try:
        pool = kind.planned_pool(system, camera.values, heaps, consumers.agree)
    except NegotiationError as error:  # also raised if no format can have the camera's size
        known = consumers.known
        return replace(
            need,
            slots=consumers.slots(kind.HELD if known is None else known.constraints.slots),
            size=_NOBODY_KNOWS if known is None else known.size,
            problem='the camera and its consumers do not agree on the buffers',
            refusal=str(error),
        )
    if pool is None:
        return replace(
            need,
            slots=consumers.slots(kind.HELD),
            problem='the picture size is unknown until the camera streams; set width and height',
        )
    layout = pool.settings.layout
    known = consumers.known
    need = replace(
        need,
        size=(layout.width, layout.height),
        refusal=consumers.refusal(pool.settings),
        misfits=consumers.misfits,
        agreed=layout.describe() if known is not None and known.formats else '',
    )
    need = need.in_heap(pool.heap) if pool.heap else need
    return need.of(pool.settings.slots, pool.buffers)
