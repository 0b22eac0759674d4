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
Components for the container's tests: well-behaved ones, and every kind of bad one.

The well-behaved ones are like those in rclpy's pull request 599.
"""

from __future__ import annotations

from functools import partialmethod
from pathlib import Path
import sys
import threading
import time
from typing import Any

import rclpy
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node
from std_msgs.msg import String

TICK_S = 0.02
FOREVER = threading.Event()
KEPT: list[Node] = []


class Quiet(Node):
    """Store its constructor's arguments, and do nothing else."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__('quiet', **kwargs)
        self.declare_parameter('size', 1)
        self.words = self.create_publisher(String, 'words', 1)
        arguments = {name: value for name, value in kwargs.items() if isinstance(value, bool)}
        print(
            f'{self.get_fully_qualified_name()}: size {self.get_parameter("size").value}, '
            f'arguments {arguments}'
        )


class Ticking(Node):
    """Publish the number of its ticks, which shows that it is spun."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__('ticking', **kwargs)
        self.ticks = 0
        self.publisher = self.create_publisher(String, '~/ticks', 10)
        self.create_timer(TICK_S, self.tick)

    def tick(self) -> None:
        self.ticks += 1
        self.get_logger().debug('a tick')
        self.publisher.publish(String(data=str(self.ticks)))


class RaisesAfterNode(Node):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__('half_made', **kwargs)
        KEPT.append(self)  # the node stays in the graph until it is destroyed
        self.create_timer(TICK_S, lambda: None)
        raise ValueError('first line\n  second line')


class _Odd(Exception):
    """An exception whose text isn't a string."""

    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class RaisesBeforeNode(Node):
    error: BaseException = OSError(19, 'No such device', '/dev/camera')

    def __init__(self, **kwargs: Any) -> None:
        raise self.error


class RaisesBytes(RaisesBeforeNode):
    """The message contains bytes that aren't UTF-8, and a zero byte."""

    error = OSError('bad \udcff\ud800 end\0 of it')


class RaisesOdd(RaisesBeforeNode):
    error = _Odd()


class Exits(RaisesBeforeNode):
    error = SystemExit('no camera, goodbye')


class SpinsOnce(Ticking):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        while not self.ticks:
            rclpy.spin_once(self, timeout_sec=10.0)


class Slow(Node):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__('slow', **kwargs)
        folder = Path(self.declare_parameter('folder', '').value)
        (folder / 'begun').touch()
        while not (folder / 'go_on').exists():
            time.sleep(TICK_S)


class Fragile(Ticking):
    def tick(self) -> None:
        raise RuntimeError('a tick has failed')


class ExitsInCallback(Ticking):
    def tick(self) -> None:
        sys.exit('that is all')


class HangsInCallback(Ticking):
    def tick(self) -> None:
        print('a callback hangs')
        FOREVER.wait()


class Managed(LifecycleNode):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__('managed', **kwargs)
        self.file = Path(self.declare_parameter('file', '').value)
        self.trigger_configure()
        self.trigger_activate()

    def note(self, step: str, *_: LifecycleState) -> TransitionCallbackReturn:
        with self.file.open('a', encoding='ascii') as file:
            file.write(step + '\n')
        return TransitionCallbackReturn.SUCCESS

    on_configure = partialmethod(note, 'configure')
    on_activate = partialmethod(note, 'activate')
    on_deactivate = partialmethod(note, 'deactivate')
    on_cleanup = partialmethod(note, 'cleanup')

    def stop(self) -> None:
        self.note('stop')

    def destroy_node(self) -> None:
        self.note('destroy')
        super().destroy_node()


class Stubborn(Ticking):
    def stop(self) -> None:
        raise RuntimeError('it will not stop')

    def destroy_node(self) -> None:
        raise RuntimeError('it will not be destroyed')


class NeverStops(Ticking):
    def stop(self) -> None:
        FOREVER.wait()


class HalfNode(Node):
    """The constructor doesn't call that of Node."""

    def __init__(self, **kwargs: Any) -> None:
        self.arguments = kwargs


class GoneNode(Node):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__('gone_node', **kwargs)
        self.destroy_node()


class NoNode:
    """A class that isn't a node."""


def no_class(**kwargs: Any) -> Node:
    return Quiet(**kwargs)
