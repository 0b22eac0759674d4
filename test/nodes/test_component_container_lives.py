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

"""What components do to the container over their lives: it stays, answers, and ends in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
import signal
import time
from typing import Any

from long_form import LONG
from nodes.container_kit import Client, client, Container, install, TIMEOUT_S
import pytest
from waiting import until

from zc_perception.link.rungs import IN_PROCESS, ROS_MESSAGE
from zc_perception.observe.frame_log import find_frame_logs, FoundFrameLogs, RecordKind

CYCLES = 300 if LONG else 50
ENDS_S = 30.0
Start = Callable[..., tuple[Container, Client]]


@pytest.fixture
def start(free_domain: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start containers, each with a client."""
    folder = install(tmp_path_factory.mktemp('packages'))
    running: list[Any] = []

    def begin(
        *args: str, name: str = '/ComponentManager', program: str = 'component_container'
    ) -> tuple[Container, Client]:
        running.append(Container(folder, free_domain, *args, program=program))
        container = running[-1].__enter__()
        running.append(client(free_domain, name))
        return container, running[-1].__enter__()

    yield begin
    for context in reversed(running):
        context.__exit__(None, None, None)


def ended_in_time(container: Container, number: int = signal.SIGINT) -> None:
    """
    Wait for the end by a signal: exit code 0, and no wait for what never ends.

    The interpreter's own end is included.
    """
    begun = time.monotonic()
    assert container.end(number) == 0, container.output
    assert time.monotonic() - begun < ENDS_S


def test_a_slow_constructor_keeps_neither_list_nor_unload_waiting_and_loads_wait_for_it(
    start: Start, tmp_path: Path
) -> None:
    container, zoo = start()
    first = zoo.loaded('Quiet')
    slow = zoo.begin_load('Slow', parameters={'folder': str(tmp_path)})
    until((tmp_path / 'begun').exists, 'the slow constructor')
    later = zoo.begin_load('Quiet', node_name='later')
    assert zoo.list() == {first: '/quiet'}
    assert zoo.unload(first).success
    assert zoo.list() == {}
    assert not slow.answered
    assert not later.answered
    (tmp_path / 'go_on').touch()
    slow_id, later_id = slow.answer().unique_id, later.answer().unique_id
    assert first < slow_id < later_id
    assert zoo.list() == {slow_id: '/slow', later_id: '/later'}
    ended_in_time(container)


def test_a_constructor_that_spins_for_ever_keeps_neither_list_nor_the_end_waiting(
    start: Start,
) -> None:
    container, zoo = start()
    zoo.begin_load('SpinsForEver')
    zoo.hears()
    assert zoo.list() == {}
    ended_in_time(container)


@pytest.mark.parametrize('program', ['component_container', 'component_container_mt'])
def test_what_callbacks_raise_is_said_and_the_others_go_on(program: str, start: Start) -> None:
    container, zoo = start(program=program)
    ids = [
        zoo.loaded('Fragile', node_name='fragile'),
        zoo.loaded('ExitsInCallback', node_name='leaver'),
    ]
    zoo.loaded('Ticking')
    container.wait_for("a callback of '/fragile' has raised; the container goes on.")
    container.wait_for('RuntimeError: a tick has failed')
    container.wait_for(
        "a callback of '/leaver' has raised; the container goes on. To end a component, unload it."
    )
    zoo.hears()
    zoo.hears()
    assert container.output.count("callback of '/fragile' has raised") == 1, (
        'the same again is not said each time'
    )
    assert [zoo.unload(unique_id).success for unique_id in ids] == [True, True]
    ended_in_time(container)


def test_a_hanging_callback_holds_up_others_of_its_thread_only(start: Start) -> None:
    container, zoo = start('--ros-args', '-p', 'thread_num:=2', program='component_container_mt')
    hanging = zoo.loaded('HangsInCallback', node_name='hanging')
    container.wait_for('a callback hangs')
    zoo.loaded('Ticking')
    zoo.hears()
    assert zoo.unload(hanging).success
    left = (
        "'/hanging': a callback still runs after 1 s; the node is destroyed under it, its "
        'thread stays busy until the callback returns'
    )
    container.wait_for(left)
    zoo.hears()
    ended_in_time(container)
    assert 'ends without waiting for: ' in container.output


def test_the_single_thread_may_hang_and_the_services_still_answer(start: Start) -> None:
    container, zoo = start()
    hanging = zoo.loaded('HangsInCallback', node_name='hanging')
    assert zoo.list() == {hanging: '/hanging'}
    assert zoo.loaded('Quiet') > hanging
    ended_in_time(container)


def test_a_managed_component_goes_down_step_by_step(start: Start, tmp_path: Path) -> None:
    container, zoo = start()
    file = tmp_path / 'steps'
    unique_id = zoo.loaded('Managed', parameters={'file': str(file)})
    assert zoo.unload(unique_id).success
    assert file.read_text().split() == [
        'configure',
        'activate',
        'deactivate',
        'cleanup',
        'stop',
        'destroy',
    ]
    file.unlink()
    zoo.loaded('Managed', parameters={'file': str(file)})
    ended_in_time(container, signal.SIGTERM)
    assert file.read_text().split() == [
        'configure',
        'activate',
        'deactivate',
        'cleanup',
        'stop',
        'destroy',
    ]


def test_a_component_that_won_t_end_is_taken_down_and_reported(start: Start) -> None:
    container, zoo = start()
    unique_id = zoo.loaded('Stubborn')
    assert zoo.unload(unique_id).success
    assert zoo.list() == {}
    for text in (
        "'/ticking': stop() failed, unloading goes on",
        'it will not stop',
        'destroy_node() failed',
        'it will not be destroyed',
    ):
        container.wait_for(text)
    until(lambda: 'ticking' not in zoo.node.get_node_names(), 'out of the graph')
    zoo.loaded('Ticking')
    zoo.hears()
    ended_in_time(container)


def test_a_component_that_destroys_itself_can_be_unloaded(start: Start) -> None:
    container, zoo = start()
    unique_id = zoo.loaded('EndsItself', node_name='gone')
    until(lambda: 'gone' not in zoo.node.get_node_names(), 'out of the graph')
    zoo.loaded('Ticking')
    zoo.hears()
    assert zoo.list()[unique_id] == '/gone'
    assert zoo.unload(unique_id).success
    zoo.hears()
    ended_in_time(container)
    assert 'Traceback' not in container.output


def test_two_containers_in_one_graph(start: Start) -> None:
    one, zoo_one = start('--ros-args', '-r', '__node:=one', '-r', '__ns:=/a', name='/a/one')
    two, zoo_two = start('--ros-args', '-r', '__node:=two', name='/two')
    assert '[a.one]: ready' in one.output
    id_one, id_two = zoo_one.loaded('Quiet'), zoo_two.loaded('Ticking')
    assert (id_one, id_two) == (1, 1), 'each counts for itself'
    assert (zoo_one.list(), zoo_two.list()) == ({1: '/quiet'}, {1: '/ticking'})
    ended_in_time(one)
    zoo_two.hears()
    ended_in_time(two)


def test_global_arguments_are_the_container_s_unless_they_are_forwarded(start: Start) -> None:
    arguments = ('-r', '__node:=box', '-r', 'words:=global', '-p', 'size:=5')
    container, zoo = start('--ros-args', *arguments, name='/box')
    zoo.loaded('Quiet', node_name='mine')
    container.wait_for("/mine: size 1, arguments {'use_global_arguments': False}")
    zoo.loaded('Quiet', node_name='theirs', extra={'forward_global_arguments': True})
    container.wait_for("/theirs: size 5, arguments {'use_global_arguments': True}")
    until(
        lambda: (
            zoo.node.count_publishers('/global') == 1 and zoo.node.count_publishers('/words') == 1
        ),
        'both topics',
    )
    container.wait_for("parameter 'size' is not one of the container")


def test_cycles_leave_no_descriptor_no_thread_and_no_memory(start: Start) -> None:
    container, zoo = start()
    for _ in range(3):
        assert zoo.unload(zoo.loaded('Ticking')).success
    descriptors, threads, resident = (
        container.descriptors(),
        len(container.threads()),
        container.resident_bytes(),
    )
    for _ in range(CYCLES):
        unique_id = zoo.loaded('Ticking', parameters={'size': 3}, remap_rules=['a:=b'])
        assert zoo.unload(unique_id).success
    assert unique_id == CYCLES + 3
    assert zoo.list() == {}
    until(
        lambda: container.descriptors() <= descriptors and len(container.threads()) <= threads,
        'no more than before',
    )
    assert (
        container.resident_bytes() - resident < 4 << 20
    )  # rclpy's service for types, which it doesn't finalise, alone is 5 MiB
    until(
        lambda: (
            not [n for n, _ in zoo.node.get_service_names_and_types() if n.startswith('/ticking')]
        ),
        'nothing of it in the graph',
    )
    ended_in_time(container)


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_components_and_a_load_under_way(
    number: int, start: Start, tmp_path: Path
) -> None:
    container, zoo = start('--ros-args', '-p', 'thread_num:=3', program='component_container_mt')
    assert '3 thread(s) for components' in container.output
    for count in range(4):
        zoo.loaded('Ticking', node_name=f'n{count}')
    zoo.loaded('NeverStops', node_name='stuck')
    zoo.begin_load('Slow', parameters={'folder': str(tmp_path)})
    until((tmp_path / 'begun').exists, 'the slow constructor')
    zoo.begin_load('Quiet')
    ended_in_time(container, number)
    assert "could not be unloaded in time: '/stuck'" in container.output
    names = [f"'/n{count}'" for count in range(4)]
    unloaded = [name for name in names if f'unloaded {name}' in container.output]
    # Behind the one that hangs each has little time, and on a busy machine one may need more: then
    # that is said.
    (late,) = (
        line for line in container.output.splitlines() if 'could not be unloaded in time' in line
    )
    assert len(unloaded) >= 2 and all(name in late for name in names if name not in unloaded)
    assert 'Traceback' not in container.output


@pytest.mark.parametrize(
    ('arguments', 'text'),
    [
        (['--isolated'], "argument '--isolated' is unknown; set parameters by --ros-args"),
        (
            ['--ros-args', '-p', 'thread_num:=0'],
            "parameter 'thread_num' is 0; it must be an integer from 1 to 64",
        ),
        (['--ros-args', '-r', 'nonsense'], 'ROS arguments: '),
    ],
)
def test_a_wrong_argument_ends_it_with_one_line(
    arguments: list[str], text: str, free_domain: int, tmp_path: Path
) -> None:
    with Container(tmp_path, free_domain, *arguments, wait=False) as container:
        assert container.process.wait(TIMEOUT_S) == 2
        container._reader.join(60.0)
    lines = container.output.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith('component_container: error: ')
    assert text in lines[0]


# Frames of a loaded camera go to a loaded accelerator.


SMALL = {'width': 160, 'height': 120, 'framerate': 60.0}
CPU = {'accelerator': 'onnx'}
FRAMES = 20
DDS = {'use_intra_process_comms': False}


@pytest.fixture
def container(free_domain: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with Container(
        install(tmp_path_factory.mktemp('packages')),
        free_domain,
        program='component_container_mt',
        cold=True,
    ) as running:
        yield running


@pytest.fixture
def ours(container: Container, free_domain: int) -> Iterator[Client]:
    with client(free_domain) as made:
        yield made


class Logs:
    """The frame logs of the container's nodes, read from outside of it."""

    def __init__(self, container: Container) -> None:
        self._pid = container.pid
        self.records: dict[str, dict[int, Any]] = {'capture': {}, 'inference': {}}
        self.facts: dict[str, dict[str, Any]] = {}

    def read(self) -> int:
        """How many frames are in both."""
        with self._find() as logs:
            for log in logs:
                self.facts[log.role] = log.facts()
                done = RecordKind.PUBLISHED if log.role == 'capture' else RecordKind.PROCESSED
                self.records[log.role] |= {
                    record.sequence: record for record in log.read() if record.kind == done
                }
        return len(self.both())

    def _find(self) -> FoundFrameLogs:
        return find_frame_logs(pids=[self._pid])

    def both(self) -> list[int]:
        """Sequence numbers that the camera has published and the accelerator has processed."""
        return sorted(self.records['capture'].keys() & self.records['inference'].keys())


def load_both(ours: Client, order: tuple[str, str], **options: Any) -> dict[str, int]:
    parameters = {'CaptureNode': SMALL, 'InferenceNode': CPU}
    return {
        name: ours.loaded(name, 'ours', parameters=parameters[name], **options) for name in order
    }


@pytest.mark.parametrize(
    'order',
    [
        pytest.param(('CaptureNode', 'InferenceNode'), marks=pytest.mark.long),
        ('InferenceNode', 'CaptureNode'),
    ],
)
def test_frames_pass_as_the_same_memory_whichever_was_loaded_first(
    order: tuple[str, str], container: Container, ours: Client
) -> None:
    ids = load_both(ours, order)
    logs = Logs(container)
    until(
        lambda: logs.read() >= FRAMES and logs.facts['inference'].get('rung') == IN_PROCESS,
        'frames through both',
    )
    for sequence in logs.both():
        published, processed = (
            logs.records['capture'][sequence],
            logs.records['inference'][sequence],
        )
        assert (published.st_dev, published.inodes, published.buffer_uid) == (
            processed.st_dev,
            processed.inodes,
            processed.buffer_uid,
        )
    assert all(record.inodes and all(record.inodes) for record in logs.records['capture'].values())
    pool = {inode for _, inode in logs.facts['capture']['pool']}
    assert {logs.records['inference'][sequence].inodes[0] for sequence in logs.both()} <= pool
    assert (logs.facts['capture']['conversions'], logs.facts['inference']['conversions']) == (0, 0)
    assert ours.unload(ids['InferenceNode']).success
    assert ours.unload(ids['CaptureNode']).success
    with find_frame_logs(pids=[container.pid]) as left:
        assert list(left) == []
    assert container.end() == 0
    assert 'left behind' not in container.output
    assert 'Traceback' not in container.output


@pytest.mark.parametrize(
    'forced', ['CaptureNode', pytest.param('InferenceNode', marks=pytest.mark.long)]
)
def test_without_in_process_communication_it_is_messages(
    forced: str, container: Container, ours: Client
) -> None:
    for name, parameters in (('CaptureNode', SMALL), ('InferenceNode', CPU)):
        ours.loaded(name, 'ours', parameters=parameters, extra=DDS if name == forced else None)
    logs = Logs(container)
    until(
        lambda: (
            logs.read() is not None and logs.facts.get('inference', {}).get('conversions', 0) >= 5
        ),
        'frames by messages',
    )
    assert logs.facts['inference']['rung'] == ROS_MESSAGE
    assert container.end() == 0


def test_cycles_of_the_package_s_own_components_leave_nothing(
    container: Container, ours: Client
) -> None:
    logs = Logs(container)

    def no_more(descriptors: int, threads: int) -> bool:
        return container.descriptors() <= descriptors and len(container.threads()) <= threads

    def cycle() -> None:
        ids = load_both(ours, ('CaptureNode', 'InferenceNode'))
        logs.records = {'capture': {}, 'inference': {}}
        until(lambda: logs.read() >= 3, 'frames through both')
        for name in ('CaptureNode', 'InferenceNode'):
            assert ours.unload(ids[name]).success

    for _ in range(3):
        cycle()
    descriptors, threads, resident = (
        container.descriptors(),
        len(container.threads()),
        container.resident_bytes(),
    )
    for _ in range(10):
        for _ in range(5):
            cycle()
        # A descriptor that ends with its last reference may wait for the garbage collector, which
        # no idle process runs.
        with suppress(AssertionError):
            until(partial(no_more, descriptors, threads), 'no more than before', 3.0)
            break
        # What is made once for the whole process, when it is needed first, stays; what leaks is
        # more after the next cycles.
        descriptors, threads = container.descriptors(), len(container.threads())
    else:
        raise AssertionError(
            f'{container.descriptors()} descriptors, {container.threads()}; before: '
            f'{descriptors}, {threads}'
        )
    assert container.resident_bytes() - resident < 40 << 20
    until(
        lambda: 'memfd:' not in Path(f'/proc/{container.pid}/maps').read_text(),
        'no frame and no log is mapped',
    )
    assert container.end() == 0
    assert 'left behind' not in container.output
