"""What the nodes agree on about their buffers: those of the parameter file, and those that run.

What runs is read from the nodes' frame logs, which needs no ROS.
"""

from __future__ import annotations

from collections.abc import Iterator

from zc_perception.doctor.pool_need import pool_need
from zc_perception.machine.finding import Finding, Status, ok, skip
from zc_perception.machine.needs import Needs
from zc_perception.machine.system import System
from zc_perception.observe.frame_log import find_frame_logs


def planned_agreements(system: System, needs: Needs) -> Iterator[Finding]:
    """What each camera of the parameter file and its consumers would agree on."""
    if not needs.cameras:
        yield skip('no parameter file was given (--params-file)')
    for camera in needs.cameras:
        need, node = pool_need(system, needs, camera), camera.node
        beside = ' and '.join(one.node for one in needs.inferences)
        required = any(one['copy_free'] == 'required' for one in needs.inferences)
        if need.refusal:
            step = f"change what the message names: 'participants', 'slots', 'heap', the format or the size of {node}"
            yield Finding(Status.FAIL, f'there can be no buffers: {need.refusal}', step, node)
        elif need.misfits:
            step = f'change the format, size or heap of {node}, or the accelerator of {beside}'
            found = f'frames come as messages, which are copies, or not at all: {"; ".join(need.misfits)}'
            yield Finding(Status.FAIL if required else Status.WARN, found, step, node)
        elif need.problem:
            yield skip(f'it is agreed on when the camera streams: {need.problem}', node)
        else:
            yield ok(f'{need.agreed or f"{need.slots} slots"}, in {need.memory}', node)


def running_agreements(system: System, needs: Needs) -> Iterator[Finding]:
    """What each capture node that runs has agreed on with its consumers, what it could give, and whom it refuses."""
    cameras = 0
    with find_frame_logs(system.proc) as logs:
        for log in logs:
            facts = log.facts()
            if log.role != 'capture' or not log.alive or 'agreed' not in facts:
                continue
            cameras += 1
            figures = {key: facts.get(key) for key in ('possible_formats', 'possible_heaps')}
            could = f'it could give {facts["possible_formats"]}'
            yield ok(f'{facts["agreed"]}; {could}', log.node, **figures)
            for name, why in facts['refused'].items():
                reason, _, step = str(why).rpartition('; ')
                yield Finding(Status.WARN, f'{name} is refused: {reason}', step, log.node, figures)
    if not cameras:
        yield skip('no capture node of this user runs')
