"""The consumer in the README is a program that works: as printed, in a process of its own, and in the camera's process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import rclpy
from nodes.programs import environment
from rclpy.parameter import Parameter
from readme_process import load, watched

from zc_perception.link.endpoints import IN_PROCESS, SHARED_MEMORY
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.process import NodeGroup

README = Path(__file__).resolve().parent.parent / 'README.md'
HARNESS = Path(__file__).with_name('readme_process.py')
HEADING = '## Use a frame in your own node'
FRAMES = 20
TIMEOUT_S = 60.0
SAID = re.compile(r'frame (\d+): brightness (\d+\.\d)')


def program() -> str:
    """The first Python block below the heading."""
    below = README.read_text(encoding='utf-8').split(f'\n{HEADING}\n')[1]
    block = re.search(r'```python\n(.*?)```', below.split('\n## ')[0], re.DOTALL)
    assert block is not None
    return block[1]


@pytest.fixture
def consumer(tmp_path: Path) -> Path:
    path = tmp_path / 'viewer.py'
    path.write_text(program(), encoding='utf-8')
    return path


@contextmanager
def capture(domain: int, *others: Any) -> Iterator[tuple[CaptureNode, Any]]:
    """A camera that runs; *others* make nodes for the same process, from the context."""
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain)
    try:
        values = {'framerate': 60.0, 'width': 128, 'height': 96}
        overrides = [Parameter(name, value=value) for name, value in values.items()]
        node = CaptureNode(ledger=CopyLedger(), context=context, parameter_overrides=overrides)
        with NodeGroup(context, [node], lambda: None) as group:
            more = [make(context) for make in others]
            for other in more:
                group.add_node(other)
            group.start()
            yield node, more
            assert group.failure is None
    finally:
        context.try_shutdown()


def inodes(camera: CaptureNode) -> set[int]:
    pool = camera.camera.pool
    assert pool is not None
    return {buffer.identity.inode for slot in pool.slots for buffer in slot.buffers}


def test_it_is_about_fifteen_lines() -> None:
    assert len([line for line in program().splitlines() if line.strip()]) <= 17


def test_in_a_process_of_its_own_it_gets_the_cameras_buffers(consumer: Path, free_domain: int) -> None:
    with capture(free_domain) as (camera, _):
        done = subprocess.run(
            [sys.executable, str(HARNESS), str(consumer), str(FRAMES)],
            env=environment(free_domain), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout.splitlines()[-1])
        own = inodes(camera)
        assert camera.publisher.statistics().conversions == 0
        assert set(camera.ledger.entries()) == {'draw'}, 'the synthetic camera draws, nobody converts'
    assert seen['rung'] == SHARED_MEMORY
    assert len(seen['inodes']) >= FRAMES and set(seen['inodes']) <= own
    assert seen['conversions'] == 0 and seen['copies'] == []
    assert len(SAID.findall(done.stderr + done.stdout)) >= FRAMES


def test_in_the_cameras_process_it_gets_the_very_same_objects(consumer: Path, free_domain: int) -> None:
    published: list[Any] = []
    with capture(free_domain, lambda context: watched(load(str(consumer)), context)) as (camera, (viewer,)):
        publish, enough = camera.publisher.publish, threading.Event()

        def note(frame: Any) -> None:
            published.append(frame.data)
            publish(frame)
            if len(viewer.data) >= FRAMES:
                enough.set()

        camera.publisher.publish = note  # type: ignore[method-assign]
        assert enough.wait(TIMEOUT_S)
        statistics, own, data = viewer.frames.statistics(), inodes(camera), list(viewer.data)
        assert camera.publisher.statistics().conversions == 0
        assert set(camera.ledger.entries()) == {'draw'}
    viewer.destroy_node()
    assert statistics.rung == IN_PROCESS and statistics.conversions == 0
    assert {one.buffers[0].identity.inode for one in data} <= own
    assert viewer.frames.ledger.entries() == {}
    noted = {id(one) for one in published}
    assert len([one for one in data if id(one) in noted]) >= FRAMES - 2, 'the FrameData that the camera published'


def test_as_it_is_printed_it_runs_until_ctrl_c(consumer: Path, free_domain: int) -> None:
    with capture(free_domain):
        running = subprocess.Popen(
            [sys.executable, str(consumer)], env=environment(free_domain), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        stopper = threading.Timer(TIMEOUT_S, running.kill)
        stopper.start()
        try:
            assert running.stdout is not None
            said: list[re.Match[str]] = []
            for line in running.stdout:
                said += [match] if (match := SAID.search(line)) else []
                if len(said) == FRAMES:
                    running.send_signal(signal.SIGINT)
            assert len(said) >= FRAMES
            assert [int(match[1]) for match in said] == sorted({int(match[1]) for match in said}), 'each frame once, in order'
            assert all(float(match[2]) > 1.0 for match in said), 'the pixels were there'
            assert running.wait(10) in (0, 1, -signal.SIGINT), 'rclpy.spin lets KeyboardInterrupt through'
        finally:
            stopper.cancel()
            running.kill()
            running.wait(10)
