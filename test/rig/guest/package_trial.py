"""A camera and accelerators whose constraints suit, but whose imports fail on trial: nodes in the camera's process, and in another one.

The driver has ioctls 64 to 66 only. It says nothing of strides and imports tight images only, and the camera pads its rows.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import rclpy
from rclpy.parameter import Parameter

from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.process import NodeGroup
from zc_perception.observe.diagnostics import Level, Status

from .frame_checker import FrameChecker
from .harness import equal
from .kernel_api import live, parameters
from .package_kit import MANIFEST, check
from .package_link_processes import Remote

PATIENCE_S = 120.0
FRAMES = 3
CAPTURE = {
    'camera': 'synthetic', 'pattern': 'counter', 'width': 128, 'height': 72, 'framerate': 2.0, 'slots': 8, 'heap': 'dma_heap/system',
    'participants': ['wide: NV12; stride_align=1024'], 'image_encoding': 'nv12',
}  # fmt: skip
INFERENCE = {'accelerator': 'axl', 'model': str(MANIFEST.path), 'timeout': 60.0}
WHY = 'only tight LINEAR images in one buffer'
ELSEWHERE_SAYS = "this node can't use the publisher's buffers", 'trial import of slot 0 failed', WHY
#: By the name of an inference node in the other process, whether it takes copies.
ELSEWHERE = {'elsewhere': 'preferred', 'strict': 'required'}


def _node(kind: Any, context: rclpy.Context, name: str, values: dict[str, Any]) -> Any:
    overrides = [Parameter(key, value=value) for key, value in values.items()]
    return kind(context=context, parameter_overrides=overrides, cli_args=['--ros-args', '-r', f'__node:={name}'])


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """What nodes of this process log."""
    kept = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 2)
    os.close(file)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _status(node: Any, part: str) -> Status:
    return next(status for status in node.collect_diagnostics() if status.part == part)


def _state(node: InferenceNode) -> dict[str, Any]:
    """What an inference node says of itself."""
    link, statistics, shown = node.subscription.statistics(), node.scheduler.statistics(), _status(node, 'link')
    return {
        'rung': link.rung,
        'reason': link.reason,
        'shown': [shown.level.name, shown.text()],
        'processed': node.processed,
        'failed': node.failed,
        'unaccounted': link.received - link.dropped - statistics.taken,
        'conversions': link.conversions,
        'booked': {reason: entry.count for reason, entry in node.ledger.entries().items()}.get('from_ros', 0),
    }


class Readers:
    """The other process: its inference nodes, one after the other asked for their state."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._nodes: dict[str, InferenceNode] = {}

    def start(self, log: str) -> None:
        """Make and start them."""
        self._stack.enter_context(_logging_to(Path(log)))
        context = rclpy.Context()
        rclpy.init(context=context)
        self._stack.callback(context.try_shutdown)
        for name, copy_free in ELSEWHERE.items():
            self._nodes[name] = _node(InferenceNode, context, name, INFERENCE | {'copy_free': copy_free})
        group = self._stack.enter_context(NodeGroup(context, list(self._nodes.values()), lambda: None))
        group.start()

    def state(self, name: str) -> dict[str, Any]:
        """See :func:`_state`."""
        return _state(self._nodes[name])

    def close(self) -> None:
        """End them."""
        self._stack.close()


def _expect_words(text: str, *words: str) -> None:
    assert all(word in text for word in words), f'not all of {words} are in: {text}'


def _expect_line(log: str, *words: str) -> None:
    assert any(all(word in line for word in words) for line in log.splitlines()), f'no line has all of {words}:\n{log}'


def _expect_copies(state: dict[str, Any], slot: str) -> None:
    equal((state['rung'], state['shown'][0]), ('ros_message', 'WARN'), 'rung, level')
    for text in (state['reason'], state['shown'][1]):
        _expect_words(text, f'trial import of slot {slot} failed', WHY, 'stride 1024')
    # One may be waiting for the accelerator; each other one was run. Each came by a message, which is booked.
    assert state['processed'] >= FRAMES and state['failed'] == 0 and 0 <= state['unaccounted'] <= 1, state
    assert abs(state['booked'] - state['conversions']) <= 1, state


@check
def nodes_whose_trial_imports_fail_fall_a_rung_by_name_in_this_process_and_in_another() -> None:
    checker = FrameChecker()
    with ExitStack() as stack:
        stack.callback(checker.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(parameters(abi_level=1))
        readers = stack.enter_context(Remote(Readers))
        readers.ask('start', str(folder / 'theirs'))
        stack.enter_context(_logging_to(folder / 'ours'))
        context = rclpy.Context()
        rclpy.init(context=context)
        stack.callback(context.try_shutdown)
        capture = _node(CaptureNode, context, 'capture', CAPTURE)
        here = _node(InferenceNode, context, 'here', INFERENCE)
        here.observers.append(checker.observe)
        group = stack.enter_context(NodeGroup(context, (capture, here), lambda: None))
        group.start()
        readers.answer()
        shown: set[str] = set()

        def state(name: str) -> dict[str, Any]:
            return _state(here) if name == 'here' else readers.call('state', name)

        def expect(name: str, rung: str, frames: int) -> None:
            """A machine that stands still may need several attempts to connect. Until then messages come for that reason."""
            deadline = time.monotonic() + PATIENCE_S
            while (found := state(name))['rung'] != rung or 'trial' not in found['reason'] or found['processed'] < frames:
                shown.add(_status(capture, 'link').message)
                assert time.monotonic() < deadline, (name, found, shown)
                time.sleep(0.5)

        expect('here', 'ros_message', FRAMES)
        expect('elsewhere', 'ros_message', FRAMES)
        expect('strict', 'refused', 0)
        shown.add(_status(capture, 'link').message)
        slots = len(capture.camera.slots)
        _expect_copies(_state(here), f'0 of {slots}')
        _expect_copies(state('elsewhere'), '0')
        strict = state('strict')
        equal((strict['shown'][0], strict['processed'], strict['conversions']), ('ERROR', 0, 0), 'who takes no copies')
        _expect_words(strict['shown'][1], 'copy_free is required, but ', *ELSEWHERE_SAYS, "or set 'copy_free' to 'preferred'")

        # Of several in a short time the latest is shown. The log has them all.
        said = next((text for text in shown if 'lately: ' in text and 'trial' in text), '')
        _expect_words(said, *ELSEWHERE_SAYS[1:])
        assert any(f'lately: {name}: ' in said for name in ELSEWHERE), said
        link, agreed = _status(capture, 'link'), _status(capture, 'negotiation')
        assert link.values['refused_constraints'] >= len(ELSEWHERE), link.values
        equal(agreed.level, Level.WARN, 'negotiation')
        _expect_words(agreed.message, 'axl /dev/metis', f'fell back: trial import of slot 0 of {slots} failed', WHY)
        equal(capture.camera.pool.statistics().holders.keys() & {'here', *ELSEWHERE}, set(), 'who still holds slots')
        assert all(frame['device_crc'] == frame['content_crc'] for frame in checker.frames), checker.frames
        equal((group.failure, live()['imports'] > 0), (None, True), 'failure, imports of converted frames')
        ours, theirs = ((folder / name).read_text() for name in ('ours', 'theirs'))
    _expect_line(ours, 'WARN', '[capture]: axl /dev/metis', f'fell back: trial import of slot 0 of {slots} failed', WHY)
    for name in ELSEWHERE:
        _expect_line(ours, 'WARN', f'[capture]: /capture: consumer {name}#', "can't use the buffers", *ELSEWHERE_SAYS[1:])
    _expect_line(ours, 'WARN', '[here]: ', 'link is ros_message', f'trial import of slot 0 of {slots} failed', 'each frame is copied')
    _expect_line(theirs, 'WARN', '[elsewhere]: ', 'link is ros_message', *ELSEWHERE_SAYS, 'each frame is copied')
    _expect_line(theirs, 'ERROR', '[strict]: ', 'link is refused: copy_free is required, but ', *ELSEWHERE_SAYS)
