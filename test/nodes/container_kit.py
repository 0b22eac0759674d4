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

"""A component container in its own process, and a client of its services."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import os
from pathlib import Path
import signal
import sys
import threading
from typing import Any

from composition_interfaces.srv import ListNodes, LoadNode, UnloadNode
from nodes import container_components
from nodes.programs import Program, TIMEOUT_S
from nodes.ros_kit import answer_of
import rclpy
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from std_msgs.msg import String
from waiting import until

from zc_perception.nodes.process import ExecutorThread

TEST_FOLDER = Path(__file__).resolve().parent.parent
ZOO = 'zoo'
_MODULE = container_components.__name__
_ENTRY_POINTS = {
    f'{ZOO}::{name}': f'{_MODULE}:{name}'
    for name, kind in vars(container_components).items()
    if isinstance(kind, type) and kind.__module__ == _MODULE
} | {
    f'{ZOO}::inner::Quiet': f'{_MODULE}:Quiet',
    f'{ZOO}::Function': f'{_MODULE}:no_class',
    f'{ZOO}::NoModule': 'nodes.there_is_no_such_module:Thing',
    f'{ZOO}::NoAttribute': f'{_MODULE}:Missing',
    f'{ZOO}::ExitsAtImport': 'nodes.container_exits_at_import:Thing',
    'elsewhere::Quiet': f'{_MODULE}:Quiet',
}  # fmt: skip
OWN = ('CaptureNode', 'InferenceNode')


def install(folder: Path) -> Path:
    """Write the metadata of packages with the tests' components; return a folder for the path."""
    groups = {
        ZOO: _ENTRY_POINTS,
        'ours': {f'ours::{name}': f'zc_perception.nodes.components:{name}' for name in OWN},
    }
    for package, entries in groups.items():
        info = folder / f'{package}-1.0.dist-info'
        info.mkdir()
        (info / 'METADATA').write_text(f'Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n')
        (info / 'entry_points.txt').write_text(
            '[rclpy_components]\n'
            + ''.join(f'{name} = {value}\n' for name, value in entries.items())
        )
    return folder


class Container(Program):
    """
    A running ``component_container``.

    :param folder: the folder that :func:`install` returned.
    :param cold: start a new interpreter, as a user does, instead of forking a prepared one.
    """

    def __init__(
        self,
        folder: Path,
        domain: int,
        *args: str,
        program: str = 'component_container',
        wait: bool = True,
        cold: bool = False,
    ) -> None:
        code = (
            f'import sys; from zc_perception.nodes.main import {program} as main; sys.exit(main())'
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
        self.pid = self.process.pid
        self.start()
        if wait:
            self.wait_for(']: ready')

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until *text* was printed *count* times."""
        until(
            lambda: self.output.count(text) >= count or not self._reader.is_alive(),
            lambda: f'{text!r} was not printed:\n{self.output}',
        )
        assert self.output.count(text) >= count, f'{text!r} was not printed:\n{self.output}'

    def end(self, number: int = signal.SIGINT) -> int:
        return self.interrupt(number=number)

    def descriptors(self) -> int:
        return len(os.listdir(f'/proc/{self.pid}/fd'))

    def threads(self) -> list[str]:
        """Return the names that the kernel has for its threads."""
        names = []
        for task in Path(f'/proc/{self.pid}/task').iterdir():
            with suppress(OSError):  # the thread has ended meanwhile
                names.append((task / 'comm').read_text().strip())
        return sorted(names)

    def resident_bytes(self) -> int:
        return int(Path(f'/proc/{self.pid}/statm').read_text().split()[1]) * os.sysconf(
            'SC_PAGESIZE'
        )


class Call:
    """A request without an answer yet."""

    def __init__(self, future: Any) -> None:
        self._future = future
        self._done = threading.Event()
        future.add_done_callback(lambda _: self._done.set())

    @property
    def answered(self) -> bool:
        return self._done.is_set()

    def answered_within(self, seconds: float) -> bool:
        return self._done.wait(seconds)

    def answer(self) -> Any:
        assert self.answered_within(TIMEOUT_S), 'the container has not answered'
        return self._future.result()


def _done_within(future: Any, seconds: float) -> bool:
    return Call(future).answered_within(seconds)


class Client:
    def __init__(self, domain: int, container: str = '/ComponentManager') -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('container_client', context=self.context)
        # rclpy's executor may end when this thread destroys a subscription; this executor doesn't.
        self._spinner = ExecutorThread(self.context, lambda: None)
        self._spinner.executor.add_node(self.node)
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
        self._spinner.start()
        # The container loses an answer whose reader it hasn't discovered. list() repeats its
        # request, and its client was created last, so all are known then.
        self.list()

    def send(self, kind: Any, request: Any) -> Call:
        client = self._services[kind]
        assert client.wait_for_service(TIMEOUT_S), f'no service {client.srv_name}'
        return Call(client.call_async(request))

    def begin_load(
        self,
        plugin: str,
        package: str = ZOO,
        *,
        parameters: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Call:
        """Request a component; *fields* are other fields of the request."""
        name = plugin if '::' in plugin else f'{package}::{plugin}'
        request = LoadNode.Request(package_name=package, plugin_name=name, **fields)
        request.parameters = [
            Parameter(name, value=value).to_parameter_msg()
            for name, value in (parameters or {}).items()
        ]
        request.extra_arguments = [
            Parameter(name, value=value).to_parameter_msg()
            for name, value in (extra or {}).items()
        ]
        return self.send(LoadNode, request)

    def load(self, plugin: str, package: str = ZOO, **options: Any) -> Any:
        return self.begin_load(plugin, package, **options).answer()

    def loaded(self, plugin: str, package: str = ZOO, **options: Any) -> int:
        """Load a component, which must succeed; return its id."""
        answer = self.load(plugin, package, **options)
        assert answer.success, answer.error_message
        return int(answer.unique_id)

    def begin_unload(self, unique_id: int) -> Call:
        return self.send(UnloadNode, UnloadNode.Request(unique_id=unique_id))

    def unload(self, unique_id: int) -> Any:
        return self.begin_unload(unique_id).answer()

    def list(self) -> dict[int, str]:  # noqa: A003
        """Return names by id, in the order of the answer."""
        client = self._services[ListNodes]
        assert client.wait_for_service(TIMEOUT_S), f'no service {client.srv_name}'
        answer = answer_of(client, ListNodes.Request(), _done_within, TIMEOUT_S)
        return dict(zip(answer.unique_ids, answer.full_node_names, strict=True))

    def call(self, kind: Any, service: str, request: Any) -> Any:
        """Call another service; the request may be sent twice."""
        client = self.node.create_client(kind, service)
        try:
            assert client.wait_for_service(TIMEOUT_S), f'no service {service}'
            return answer_of(client, request, _done_within, TIMEOUT_S)
        finally:
            self.node.destroy_client(client)

    def hears(self, topic: str = '/ticking/ticks') -> None:
        """Wait for a message on *topic*, which shows that its publisher is spun."""
        heard = threading.Event()
        subscription = self.node.create_subscription(String, topic, lambda message: heard.set(), 1)
        assert heard.wait(TIMEOUT_S), f'nothing on {topic}'
        self.node.destroy_subscription(subscription)

    def close(self) -> None:
        self._spinner.stop()
        self.node.destroy_node()
        self.context.try_shutdown()
        assert self._spinner.failure is None, self._spinner.failure


@contextmanager
def client(domain: int, container: str = '/ComponentManager') -> Iterator[Client]:
    made = Client(domain, container)
    try:
        yield made
    finally:
        made.close()
