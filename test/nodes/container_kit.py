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
A component container in its own process, a client of its services, and components for it.

There are well-behaved components, like those in rclpy's pull request 599, and every kind of bad
one.
"""

from __future__ import annotations

from functools import partialmethod
import os
from pathlib import Path
import sys
import threading
import time
from typing import Any

from composition_interfaces.srv import ListNodes, LoadNode, UnloadNode
from entry_point_kit import install as install_metadata
from nodes.programs import Program, TIMEOUT_S
from nodes.ros_kit import answer_of, Onlooker, overrides
import rclpy
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.task import Future
from std_msgs.msg import String
from waiting import eventually

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


class RaisesBytes(Node):
    """The message contains bytes that aren't UTF-8, and a zero byte."""

    error: BaseException = OSError('bad \udcff\ud800 end\0 of it')

    def __init__(self, **kwargs: Any) -> None:
        raise self.error


class RaisesOdd(RaisesBytes):
    error = _Odd()


class Exits(RaisesBytes):
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
    def __init__(self, **kwargs: Any) -> None:
        self.arguments = kwargs


class GoneNode(Node):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__('gone_node', **kwargs)
        self.destroy_node()


TEST_FOLDER = Path(__file__).resolve().parent.parent
ZOO = 'zoo'
_ENTRY_POINTS = {
    f'{ZOO}::{name}': f'{__name__}:{name}'
    for name, kind in list(vars().items())
    if isinstance(kind, type) and kind.__module__ == __name__
} | {
    f'{ZOO}::inner::Quiet': f'{__name__}:Quiet',
    f'{ZOO}::NoNode': 'pathlib:Path',
    f'{ZOO}::Function': 'os:getpid',
    f'{ZOO}::NoModule': 'nodes.there_is_no_such_module:Thing',
    f'{ZOO}::NoAttribute': f'{__name__}:Missing',
    f'{ZOO}::ExitsAtImport': 'exits_at_import:Thing',
    'elsewhere::Quiet': f'{__name__}:Quiet',
}
OWN = ('CaptureNode', 'InferenceNode')


def install(folder: Path) -> Path:
    """Write the metadata of packages with the tests' components; return a folder for the path."""
    groups = {
        ZOO: _ENTRY_POINTS,
        'ours': {f'ours::{name}': f'zc_perception.nodes.components:{name}' for name in OWN},
    }
    # As a script without a main guard may.
    (folder / 'exits_at_import.py').write_text("raise SystemExit('no display')\n")
    for package, entries in groups.items():
        install_metadata(folder, package, {'rclpy_components': entries})
    return folder


class Container(Program):
    """
    A running ``component_container``.

    :param folder: the folder that :func:`install` returned.
    :param cold: start a new interpreter, as a user does, instead of forking a prepared one.
    :param unload_s: how long the end waits for components, unless *cold*; a user's container waits
        only 1.2 s, in which a busy machine may unload none.
    """

    def __init__(
        self,
        folder: Path,
        domain: int,
        *args: str,
        program: str = 'component_container',
        cold: bool = False,
        unload_s: float = 60.0,
    ) -> None:
        code = (
            'import sys; from zc_perception.nodes import container; '
            f'container._UNLOAD_S = {unload_s}; '
            f'from zc_perception.nodes.main import {program} as main; sys.exit(main())'
        )
        path = os.pathsep.join([str(folder), str(TEST_FOLDER), os.environ.get('PYTHONPATH', '')])
        sockets = folder / 'sockets'
        sockets.mkdir(mode=0o700, exist_ok=True)
        variables = {'PYTHONPATH': path, 'ZC_RUNTIME_DIR': str(sockets)}
        super().__init__(
            program if cold else [sys.executable, '-c', code],
            *args,
            domain=domain,
            cold=cold,
            variables=variables,
        )
        self.start()
        self.wait_for(']: ready')

    def wait_for(self, text: str) -> None:
        eventually(lambda: text in self.output or not self._reader.is_alive())
        assert text in self.output, f'{text!r} was not printed:\n{self.output}'


class Client(Onlooker):
    def __init__(self, domain: int, container: str = '/ComponentManager') -> None:
        super().__init__(domain, 'container_client')
        self._services = {
            # Room for as many answers as the container takes requests: otherwise the oldest
            # answers could be lost while this process is paused.
            kind: self.node.create_client(
                kind, f'{container}/_container/{name}', qos_profile=QoSProfile(depth=200)
            )
            for kind, name in (
                (LoadNode, 'load_node'),
                (UnloadNode, 'unload_node'),
                (ListNodes, 'list_nodes'),
            )
        }
        # The container loses an answer whose reader it hasn't discovered. list() repeats its
        # request, and its client was created last, so all are known then.
        self.list()

    def _client(self, kind: Any) -> Any:
        client = self._services[kind]
        assert client.wait_for_service(TIMEOUT_S), f'no service {client.srv_name}'
        return client

    def begin_load(
        self,
        plugin: str,
        package: str = ZOO,
        *,
        parameters: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Future:
        """Request a component; *fields* are other fields of the request."""
        name = plugin if '::' in plugin else f'{package}::{plugin}'
        request = LoadNode.Request(package_name=package, plugin_name=name, **fields)
        for field, values in (('parameters', parameters), ('extra_arguments', extra)):
            messages = [each.to_parameter_msg() for each in overrides(values or {})]
            setattr(request, field, messages)
        return self._client(LoadNode).call_async(request)

    def begin_unload(self, unique_id: int) -> Future:
        return self._client(UnloadNode).call_async(UnloadNode.Request(unique_id=unique_id))

    def answer(self, future: Future) -> Any:
        assert self.done_within(future, TIMEOUT_S), 'the container has not answered'
        return future.result()

    def load(self, plugin: str, package: str = ZOO, **options: Any) -> Any:
        return self.answer(self.begin_load(plugin, package, **options))

    def loaded(self, plugin: str, package: str = ZOO, **options: Any) -> int:
        answer = self.load(plugin, package, **options)
        assert answer.success, answer.error_message
        return int(answer.unique_id)

    def unload(self, unique_id: int) -> Any:
        return self.answer(self.begin_unload(unique_id))

    def list(self) -> dict[int, str]:  # noqa: A003
        """Return names by id, in the order of the answer."""
        client = self._client(ListNodes)
        answer = answer_of(client, ListNodes.Request(), self.done_within)
        return dict(zip(answer.unique_ids, answer.full_node_names, strict=True))

    def hears(self, topic: str = '/ticking/ticks') -> None:
        """Wait for a message on *topic*, which shows that its publisher is spun."""
        heard = self.hear(String, topic, 1)
        self.until(lambda: heard, f'nothing on {topic}')
