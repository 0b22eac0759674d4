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
Cases of the agreement on buffers: what a consumer needs, and which process starts first.

``agreement_matrix.py VALUES [CASE ...]`` runs all cases, or those named ``ROW/COLUMN``, and writes
a line of JSON for each. VALUES are the capture node's parameters as JSON. If frames flow in the
column ``one process``, they must flow in every column. Processes are forked from this one to save
imports, so it must not use ROS itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, ExitStack
import json
import multiprocessing
from multiprocessing.connection import Connection
import os
from pathlib import Path
import sys
import threading
import time
from typing import Any

_TEST = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_TEST), str(_TEST.parent)]

import rclpy  # noqa: E402 - needs the path
from rclpy.parameter import Parameter  # noqa: E402
from waiting import eventually, until  # noqa: E402

from zc_perception import create_frame_subscription, Frame  # noqa: E402
from zc_perception.link.rungs import REFUSED  # noqa: E402
from zc_perception.negotiation.constraints import format_text, parse_stand_in  # noqa: E402
from zc_perception.nodes.capture import CaptureNode  # noqa: E402
from zc_perception.nodes.process import ExecutorThread, NodeGroup  # noqa: E402

ROWS = {
    'stride 64': 'NV12; stride_align=64',
    'offset align 4096': 'NV12; offset_align=4096',
    'contiguous heap': 'any; contiguous',
    'NV12 only': 'NV12',
    'YUYV only': 'YUYV',
    'tiled + linear': 'NV12:0x0300000000000010 NV12',
    'implicit': 'NV12:INVALID',
}
ALONE = 'one process'
COLUMNS = (
    ALONE,
    'capture first',
    'consumer first',
    'both at once',
    'a third joins',
    'one dies in the middle',
)
# Time for a case's result on a slow machine, which is either frames or a reported refusal.
PATIENCE_S = 120.0
_NAME = 'needy'


class Consumers:
    """Consumers in one process; *context* is the camera's if it runs in the same process."""

    def __init__(self, context: rclpy.Context | None = None) -> None:
        self._owned = context is None
        self._context = rclpy.Context() if context is None else context
        if self._owned:
            rclpy.init(context=self._context)
        self._spinner = ExecutorThread(self._context, lambda: None)
        self._spinner.start()
        self._nodes: list[Any] = []
        self._subscription: Any = None
        self._seen: list[tuple[float, str]] = []

    def join(self, name: str, needs: str) -> float:
        """Subscribe; return the time."""
        node = rclpy.create_node(name, context=self._context)
        self._nodes.append(node)
        self._subscription = create_frame_subscription(
            node,
            'image_raw',
            self._take,
            copy_free='required',
            constraints=parse_stand_in(f'{name}: {needs}'),
        )
        self._spinner.executor.add_node(node)
        return time.monotonic()

    def _take(self, frame: Frame) -> None:
        layout = frame.data.layout
        planes = ', '.join(f'+{plane.offset} stride {plane.stride}' for plane in layout.planes)
        self._seen.append(
            (time.monotonic(), f'{format_text((layout.fourcc, layout.modifier))} {planes}')
        )

    def seen(self) -> dict[str, Any]:
        statistics = self._subscription.statistics()
        return {
            'frames': len(self._seen),
            'at': self._seen[0][0] if self._seen else 0.0,
            'layout': self._seen[0][1] if self._seen else '',
            'refused': statistics.rung == REFUSED,
            'reason': statistics.reason,
            'now': time.monotonic(),
        }

    def close(self) -> None:
        self._spinner.stop()
        for node in self._nodes:
            node.destroy_node()
        if self._owned:
            self._context.try_shutdown()


class Camera:
    """A ``capture_node``, and in the column ``one process`` a consumer beside it."""

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._node: Any = None
        self._beside: Consumers | None = None

    def start(self, values: dict[str, Any], needs: str = '') -> float:
        """Start as the program does, with a consumer if it has *needs*; return the ready time."""
        context = rclpy.Context()
        rclpy.init(context=context)
        self._ends.callback(context.try_shutdown)
        if needs:
            self._beside = self._ends.enter_context(closing(Consumers(context)))
            self._beside.join(_NAME, needs)
        overrides = [Parameter(name, value=value) for name, value in values.items()]
        self._node = CaptureNode(context=context, parameter_overrides=overrides)
        group = self._ends.enter_context(NodeGroup(context, [self._node], lambda: None))
        group.start()
        return time.monotonic()

    def seen(self) -> dict[str, Any]:
        assert self._beside is not None
        return self._beside.seen()

    def knows(self, name: str) -> bool:
        """Return whether the camera has received that consumer's needs."""
        offer = self._node._offer
        return any(name in one.participant for one in offer.consumers())

    def told(self) -> dict[str, Any]:
        server = self._node._server.server.statistics()
        outcomes = self._node.session.outcomes() if self._node.session is not None else {}
        refused = [str(one) for one in outcomes.values() if not one.has_buffers]
        return {
            'renewals': self._node._offer.renewals,
            'pause_s': round(self._node.pause_s, 3),
            'refused': [*server.last_refusal.values(), *refused],
        }

    def close(self) -> None:
        self._ends.close()


class Process:
    """An object in a forked process, which a test may kill."""

    def __init__(self, make: Callable[[], Any]) -> None:
        fork = multiprocessing.get_context('fork')
        self._ours, theirs = fork.Pipe()
        self._process = fork.Process(target=_serve, args=(make, theirs, self._ours))
        self._process.start()
        theirs.close()

    def ask(self, name: str, *arguments: object) -> None:
        self._ours.send((name, *arguments))

    def answer(self) -> Any:
        assert self._ours.poll(2 * PATIENCE_S), 'no answer'
        found = self._ours.recv()
        if isinstance(found, Exception):
            raise found
        return found

    def call(self, name: str, *arguments: object) -> Any:
        self.ask(name, *arguments)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        self._ours.close()
        self._process.join(PATIENCE_S)
        if self._process.is_alive():
            self.kill()


def _serve(make: Callable[[], Any], theirs: Connection, ours: Connection) -> None:
    ours.close()
    with closing(make()) as target:
        while True:
            try:
                name, *arguments = theirs.recv()
            except EOFError:
                return
            try:
                theirs.send(getattr(target, name)(*arguments))
            except Exception as error:
                theirs.send(RuntimeError(f'{type(error).__name__}: {error}'))


class Case:
    def __init__(self, values: dict[str, Any], needs: str, column: str) -> None:
        self._values = values
        self._needs = needs
        self._column = column
        self._stack = ExitStack()

    def _process(self, make: Callable[[], Any]) -> Process:
        return self._stack.enter_context(closing(Process(make)))

    def run(self) -> dict[str, Any]:
        with self._stack:
            camera = self._process(Camera)
            ready, consumer = self._begun(camera)
            found = _served(consumer, camera)
            found['seconds'] = round(found.pop('at') - ready, 2)
            return {**found, 'camera': camera.call('told')}

    def _begun(self, camera: Process) -> tuple[float, Process]:
        """Start both; return when the last one was ready, and the consumer under test."""
        if self._column == ALONE:
            return camera.call('start', self._values, self._needs), camera
        if self._column == 'both at once':
            consumer = self._process(Consumers)
            camera.ask('start', self._values)
            consumer.ask('join', _NAME, self._needs)
            return max(camera.answer(), consumer.answer()), consumer
        if self._column == 'consumer first':
            consumer = self._process(Consumers)
            consumer.call('join', _NAME, self._needs)
            return camera.call('start', self._values), consumer
        camera.call('start', self._values)
        if self._column == 'capture first':
            consumer = self._process(Consumers)
            return consumer.call('join', _NAME, self._needs), consumer
        witness = self._process(Consumers)
        witness.call('join', 'witness', 'any')
        assert _served(witness, camera)['flows'], 'the witness got no frame'
        consumer = self._process(Consumers)
        if self._column == 'a third joins':
            return consumer.call('join', _NAME, self._needs), consumer
        consumer.call('join', 'victim', self._needs)
        eventually(lambda: camera.call('knows', 'victim'), 2.0)
        consumer.kill()
        killed, before = time.monotonic(), witness.call('seen')['frames']
        more = until(
            lambda: (seen := witness.call('seen'))['frames'] > before + 3 and seen,
            lambda: f'the witness goes on: {witness.call("seen")}',
            PATIENCE_S,
        )
        assert more['now'] - killed < PATIENCE_S
        consumer = self._process(Consumers)
        return consumer.call('join', _NAME, self._needs), consumer


def _served(consumer: Process, camera: Process) -> dict[str, Any]:
    """Wait for a frame or a refusal; the camera must report the latter, too. Return the state."""

    def look() -> Any:
        seen = consumer.call('seen')
        refused = seen['refused'] and camera.call('told')['refused']
        return (seen['frames'] or refused) and seen

    seen = until(look, lambda: consumer.call('seen'), PATIENCE_S, lambda: time.sleep(0.02))
    flows = bool(seen['frames'])
    return {
        'flows': flows,
        'layout': seen['layout'],
        'reason': '' if flows else seen['reason'],
        'at': seen['at'] if flows else seen['now'],
    }


def cases(names: list[str]) -> Iterator[tuple[str, str]]:
    for row in ROWS:
        for column in COLUMNS:
            if not names or f'{row}/{column}' in names:
                yield row, column


def complaint(found: dict[str, Any], alone: dict[str, Any], within_s: float) -> str:
    """Return a case's error, empty if none; *alone* is the result in ``one process``."""
    if 'error' in found or 'error' in alone:
        return f'{found.get("error", "")} {alone.get("error", "")}'
    if found['flows'] != alone['flows']:
        return f'in one process it is {alone["flows"]} that frames flow, here: {found}'
    if found['flows']:
        late = found['seconds'] > within_s
        return f'the first frame came {found["seconds"]} s after all were ready' if late else ''
    ends = (found['reason'], ' '.join(found['camera']['refused']))
    silent = not all(_NAME in text and ';' in text and '…' not in text for text in ends)
    return f'it is not refused by name and with a next step at both ends: {ends}' if silent else ''


def main(arguments: list[str]) -> int:
    values = json.loads(arguments[0])
    for row, column in cases(arguments[1:]):
        began = time.monotonic()
        try:
            found = Case(values, ROWS[row], column).run()
        except Exception as error:
            found = {'error': f'{type(error).__name__}: {error}'}
        assert threading.active_count() == 1, 'this process must stay fit for forking'
        told = {
            'source': values['camera'],
            'row': row,
            'column': column,
            **found,
            'took_s': round(time.monotonic() - began, 1),
        }
        print(json.dumps(told), flush=True)
    return 0


if __name__ == '__main__':
    os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    sys.exit(main(sys.argv[1:]))
