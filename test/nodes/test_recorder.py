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

"""``zc_record`` beside a camera of another process: frames and topics are on disk bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
import re
import signal
import time
from typing import Any

from foxglove_msgs.msg import CompressedVideo
from mcap.reader import make_reader
from nodes.programs import BIN, environment, parameters, Program
from nodes.ros_kit import Managed, overrides, ros, status, wait_until_known
import numpy as np
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.service_introspection import ServiceIntrospectionState
from rosbags.rosbag2 import Reader
from rosbags.typesys import get_types_from_msg, get_typestore, Stores
from sensor_msgs.msg import Image
from std_msgs.msg import Empty, String
from std_srvs.srv import Trigger
from waiting import until
import warm_start

from zc_perception.camera.replay.camera import open_source
from zc_perception.camera.road_scene import RoadScene
from zc_perception.errors import ConfigError
from zc_perception.nodes import recorder
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.params.verdict import value_problems
from zc_perception.nodes.recorder import RecorderNode


def record(domain: int, *, cold: bool = False, **values: object) -> Program:
    return Program(
        'zc_record', *parameters(**{'disk_floor': 0, **values}), domain=domain, cold=cold
    )


def test_frames_and_topics_of_another_process_are_recorded_bit_by_bit(
    tmp_path: Path, free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(tmp_path / 'run'))
    (tmp_path / 'run').mkdir(mode=0o700)
    path = tmp_path / 'a'
    camera = parameters(width=320, height=240, framerate=30.0, seed=7, heap='memfd')
    with (
        Program('capture_node', *camera, domain=free_domain).start('[capture]: ready'),
        record(free_domain, cold=True, path=path, copy_free='required').start() as recorder,
    ):
        file = path / 'a_0.mcap'
        until(lambda: file.exists() and file.read_bytes().count(b'capture: camera') > 1, 'status')
        for kind in (b'sensor_msgs/msg/CameraInfo', b'sensor_msgs/msg/Image'):
            until(lambda kind=kind: kind in file.read_bytes(), kind)
        assert recorder.interrupt() == 0
    with Reader(path) as reader:
        counts = messages_of(reader)
        assert counts.keys() == {'/image_raw', '/camera_info', '/diagnostics'}, counts
        store = get_typestore(Stores.EMPTY)
        for connection in reader.connections:
            store.register(get_types_from_msg(connection.msgdef.data, connection.msgtype))
        read: dict[str, list[Any]] = {name: [] for name in counts}
        for connection, _, content in reader.messages():
            read[connection.topic].append(store.deserialize_cdr(content, connection.msgtype))
    info = read['/camera_info'][0]
    assert (info.width, info.height, len(info.k)) == (320, 240, 9)
    assert 'capture: camera' in {s.name for one in read['/diagnostics'] for s in one.status}
    frames = counts['/image_raw']
    written = f"{frames} frames and {sum(counts.values()) - frames} messages in '{path}' (1 files)"
    assert (
        f'{written}, 0 frames and messages left out because the disk was too slow, '
        '0 frames could not be recorded'
    ) in recorder.output
    scene, found = RoadScene(320, 240, 7), []
    luma, chroma = np.empty((240, 320), np.uint8), np.empty((120, 160, 2), np.uint8)
    with closing(open_source(str(path))) as source:
        while (moment := source.advance()) is not None:
            assert moment.header is not None
            assert moment.header.frame_id == 'camera_optical_frame' and source.read([luma, chroma])
            found.append((luma.copy(), chroma.copy()))
    assert len(found) == frames
    number = -1
    for planes in found:  # frames may be missing: on a busy machine only the newest are kept
        number = next(n for n in range(number + 1, 10_000) if matches(scene, n, *planes))
    file.write_bytes(file.read_bytes()[:-1000])  # as after a kill
    words = [str(BIN / 'zc_record'), '--repair', str(path)]
    repaired = warm_start.run(words, env=environment(free_domain), timeout=120)
    assert repaired.returncode == 0 and "a_0.mcap' had no end; " in repaired.stdout
    with Reader(path) as reader:
        assert len(list(reader.messages())) == reader.message_count > 0
    file.write_bytes(b'no recording')
    refused = warm_start.run(words, env=environment(free_domain), timeout=120)
    assert refused.returncode == 2 and 'no MCAP file that can be read' in refused.stderr
    assert f"'{file}'" in refused.stderr


def test_the_last_line_counts_messages_that_are_no_frames(
    free_domain: int, tmp_path: Path
) -> None:
    depth = Image(width=4, height=4, encoding='32FC1', step=16, data=bytes(64))
    with ros(free_domain) as context, record(free_domain, path=tmp_path / 'a').start() as recorder:
        node = rclpy.create_node('depth', context=context)
        publisher = node.create_publisher(Image, 'image_raw', 1)

        def refused() -> bool:
            publisher.publish(depth)
            return 'a message could not be converted' in recorder.output

        until(refused)
        assert recorder.interrupt() == 0
        node.destroy_node()
    assert re.search(r'[1-9]\d* frames could not be recorded', recorder.output)


def test_the_last_line_says_how_many_frames_never_came(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(tmp_path / 'run'))
    (tmp_path / 'run').mkdir(mode=0o700)
    file = tmp_path / 'a' / 'a_0.mcap'
    size = lambda: file.stat().st_size if file.exists() else 0  # noqa: E731
    with Managed(free_domain) as run:
        camera = run.make(CaptureNode, {'width': 64, 'height': 64, 'framerate': 100.0})
        camera.start()
        values = {'path': tmp_path / 'a', 'topics': '[none]', 'copy_free': 'required'}
        with record(free_domain, **values).start() as recorder:
            run.grows(size, 20_000)
            recorder.process.send_signal(signal.SIGSTOP)
            run.grows(lambda: camera.publisher.statistics().published, 60)
            recorder.process.send_signal(signal.SIGCONT)
            run.grows(size, 20_000)
            assert recorder.interrupt() == 0
    with file.open('rb') as opened:
        numbers = [m.sequence for *_, m in make_reader(opened).iter_messages(['/image_raw'])]
    missing = numbers[-1] - numbers[0] + 1 - len(numbers)
    assert missing > 20 and f'could not be recorded, {missing} never came' in recorder.output


def matches(scene: RoadScene, number: int, luma: np.ndarray, chroma: np.ndarray) -> bool:
    drawn = luma * 0, chroma * 0
    scene.draw(number, *drawn)
    return bool((drawn[0] == luma).all() and (drawn[1] == chroma).all())


def test_a_topic_is_read_once_though_the_lookout_looks_at_the_same_time(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ros(free_domain) as context:
        node = rclpy.create_node('recorder', context=context)
        publisher = node.create_publisher(String, 'status', 1)
        ask, before = recorder.publishers_of, list(node.subscriptions)

        def slowly(node: Any, name: str) -> Any:
            found = ask(node, name)
            time.sleep(0.1)  # as on a busy machine
            return found

        monkeypatch.setattr(recorder, 'publishers_of', slowly)
        monkeypatch.setattr(recorder, '_LOOK_S', 0.001)
        topics = recorder.RecordedTopics(node, ['status'], print, pytest.fail)
        until(lambda: topics.names == ['/status'] and publisher.get_subscription_count())
        topics.close()
        assert list(node.subscriptions) == before
        node.destroy_node()


def test_a_later_publisher_with_another_qos_is_recorded_too(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(recorder, '_LOOK_S', 0.01)
    with ros(free_domain) as context:
        node = rclpy.create_node('recorder', context=context)
        first = node.create_publisher(String, 'status', 1)
        topics = recorder.RecordedTopics(node, ['status'], print, warnings.append)
        until(first.get_subscription_count)
        quick = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        later = node.create_publisher(String, 'status', quick)
        until(lambda: later.get_subscription_count() == first.get_subscription_count() == 1)
        topics.close()
        node.destroy_node()
    assert warnings == [
        "topic '/status' has a new publisher with another QoS; the recorder subscribes again, and "
        'a few messages may be missing'
    ]


def test_the_type_is_that_of_a_publisher_and_another_publisher_s_is_warned_of(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, '_LOOK_S', 0.01)
    warnings: list[str] = []
    with ros(free_domain) as context, ros(free_domain) as elsewhere:
        other = rclpy.create_node('other', context=elsewhere)
        other.create_subscription(Empty, 'status', lambda message: None, 1)
        node = rclpy.create_node('recorder', context=context)
        publisher = node.create_publisher(String, 'status', 1)
        until(lambda: node.count_subscribers('status') == 1)
        topics = recorder.RecordedTopics(node, ['status'], print, warnings.append)
        until(publisher.get_subscription_count)
        other.create_publisher(Empty, 'status', 1)
        until(lambda: warnings)
        topics.close()
        node.destroy_node()
        other.destroy_node()
    assert warnings[0] == (
        "topic '/status' has a publisher of type std_msgs/msg/Empty, whose messages are not "
        'recorded, because the topic is recorded as std_msgs/msg/String: give that publisher '
        'another topic'
    )


def test_remaps_change_no_name_that_the_graph_has_shown(free_domain: int) -> None:
    taken: set[tuple[str, bytes]] = set()
    warnings: list[str] = []
    remaps = [word for name, to in ('ab', 'ba', 'cd') for word in ('-r', f'/{name}:=/{to}')]
    with ros(free_domain) as context:
        node = rclpy.create_node(
            'recorder', context=context, cli_args=['--ros-args', *remaps], enable_rosout=False
        )
        camera = rclpy.create_node('camera', context=context)
        publishers = {name: camera.create_publisher(String, name, 1) for name in 'abcd'}
        topics = recorder.RecordedTopics(
            node,
            ['/*'],
            lambda topic, content, *_: taken.add((topic.name, content[8:9])),
            warnings.append,
        )

        def came() -> bool:
            for name, publisher in publishers.items():
                publisher.publish(String(data=name))
            rclpy.spin_once(node, executor=executor, timeout_sec=0.1)
            return len(taken) > 2

        executor = SingleThreadedExecutor(context=context)
        until(came)
        topics.close()
        node.destroy_node()
        camera.destroy_node()
    assert taken == {('/a', b'a'), ('/b', b'b'), ('/d', b'd')}
    assert warnings[0] == (
        "topic '/c' is not recorded, because a remap of this node turns this name into '/d'; "
        'record it by a zc_record without that remap'
    )


def test_a_message_package_without_its_library_costs_only_its_own_topics(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def incomplete(kind: type[Any]) -> str:
        if kind is CompressedVideo:
            raise RuntimeError("Could not import 'rosidl_typesupport_c'")
        return 'x'

    monkeypatch.setattr(recorder, 'definition_of', incomplete)
    warnings: list[str] = []
    with ros(free_domain) as context:
        node = rclpy.create_node('recorder', context=context)
        for kind, name in ((CompressedVideo, 'a'), (String, 'b')):
            node.create_publisher(kind, name, 1)
        topics = recorder.RecordedTopics(node, ['a', 'b'], print, warnings.append)
        until(lambda: topics.names == ['/b'])
        topics.close()
        node.destroy_node()
    assert warnings[0] == (
        "topic '/a' is not recorded: RuntimeError: Could not import 'rosidl_typesupport_c'; "
        'install the whole package of foxglove_msgs/msg/CompressedVideo'
    )


def test_a_topic_of_a_service_is_left_out_with_advice(free_domain: int) -> None:
    warnings: list[str] = []
    with ros(free_domain) as context:
        node = rclpy.create_node('recorder', context=context)
        service = node.create_service(Trigger, 'ask', lambda _, response: response)
        service.configure_introspection(
            node.get_clock(), QoSProfile(depth=1), ServiceIntrospectionState.CONTENTS
        )
        topics = recorder.RecordedTopics(node, ['/ask/*'], print, warnings.append)
        until(lambda: warnings)
        topics.close()
        node.destroy_node()
    assert warnings[0] == (
        "topic '/ask/_service_event' is not recorded, because its type std_srvs/srv/Trigger_Event "
        "belongs to a service or action; 'ros2 bag record' can record it"
    )


@pytest.mark.parametrize('frames', [True, False])
def test_no_frame_is_recorded_twice_and_no_announcement_at_all(
    frames: bool, free_domain: int, tmp_path: Path
) -> None:
    values = {'path': str(tmp_path / 'a'), 'topics': ['*'], 'frames': frames, 'disk_floor': 0}
    with Managed(free_domain) as run:
        run.make(CaptureNode, {'width': 64, 'height': 64}).start()
        recorder = run.make(RecorderNode, values)
        recorder.start()
        wanted = {'/camera_info', '/rosout', *([] if frames else ['/image_raw'])}
        run.eventually(lambda: wanted <= {*recorder._topics.names}, 'topics')
        run.eventually(lambda: recorder.recorder.statistics().messages > 20, 'messages')
        names = recorder._topics.names
        assert ('/image_raw' in names) is not frames
        assert not [name for name in names if name.endswith('/_zc')]


def test_a_disk_without_room_ends_the_start_with_one_clear_line(
    tmp_path: Path, free_domain: int
) -> None:
    with record(free_domain, path=tmp_path / 'a', disk_floor=2**31 - 1).start() as recorder:
        assert recorder.ended() == 2
    assert 'MiB free, less than' in recorder.output and 'Traceback' not in recorder.output


def test_a_black_box_refuses_a_path_at_its_start_that_no_event_could_be_written_to(
    context: rclpy.Context, tmp_path: Path
) -> None:
    (tmp_path / 'file').touch()
    for path in (tmp_path / 'file', tmp_path / 'file' / 'a', tmp_path / 'x.mcap'):
        values = {'path': str(path), 'black_box': 5.0}
        with pytest.raises(ConfigError, match=f"'{path}'"):
            RecorderNode(context=context, parameter_overrides=overrides(values))


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        ({'frames': False, 'max_frames': 5}, "'max_frames' is 5, but 'frames' is false"),
        ({'black_box': 5.0, 'max_frames': 5}, "'max_frames' is 5, but 'black_box' is 5.0"),
        ({'black_box': 5.0, 'max_duration': 3.0}, "'max_duration' is 3.0, but 'black_box'"),
    ],
)
def test_an_end_that_would_never_come_is_refused(
    values: dict[str, Any], message: str, context: rclpy.Context, tmp_path: Path
) -> None:
    ((_, said),) = value_problems(RecorderNode, '/recorder', values)
    assert re.search(message, said)
    values = {**values, 'path': str(tmp_path / 'a')}
    with pytest.raises(ConfigError, match=message):
        RecorderNode(context=context, parameter_overrides=overrides(values))
    assert not (tmp_path / 'a').exists()


@pytest.mark.parametrize(
    'name', ['detections/', 'camera-info', 'a b', '1abc', '/a//b', 'ä', '{what}/a']
)
def test_a_name_that_no_topic_can_have_is_refused_in_one_line(name: str) -> None:
    told = f"parameter 'topics': '{name}' can't be a topic's name; use letters, "
    ((parameter, said),) = value_problems(RecorderNode, '/recorder', {'topics': ['/*/x1', name]})
    assert parameter == 'topics' and said.startswith(told)
    ((parameter, said),) = value_problems(InferenceNode, '/inference', {'depth_topic': name})
    assert parameter == 'depth_topic' and said.startswith(told.replace('topics', 'depth_topic'))


def messages_of(reader: Reader) -> dict[str, int]:
    return {name: topic.msgcount for name, topic in reader.topics.items()}


@contextmanager
def black_box(
    domain: int, folder: Path
) -> Iterator[tuple[Managed, RecorderNode, Any, Callable[[int], list[Any]]]]:
    """Yield a black box, a publisher of video, and a function that triggers it several times."""
    values = {'path': str(folder / 'events'), 'black_box': 30.0, 'disk_floor': 0}
    with Managed(domain) as run:
        recorder = run.make(RecorderNode, values)
        video = run.manager.create_publisher(CompressedVideo, 'image_raw/foxglove', 30)
        client = run.manager.create_client(Trigger, '/recorder/trigger')
        recorder.start()
        wait_until_known(client, run.manager, recorder)

        def answers(count: int) -> list[Any]:
            futures = [client.call_async(Trigger.Request()) for _ in range(count)]
            run.eventually(lambda: all(future.done() for future in futures), 'answers')
            return [future.result() for future in futures]

        yield run, recorder, video, answers


def test_triggers_are_answered_with_what_was_written_or_why_not(
    free_domain: int, tmp_path: Path
) -> None:
    with black_box(free_domain, tmp_path) as (run, recorder, video, answers):
        (answer,) = answers(1)
        assert not answer.success and 'no key frame of a video has arrived' in answer.message
        run.eventually(lambda: video.get_subscription_count() == 1, 'it subscribes')
        assert 'trigger failed' in status(recorder, 'black box').message
        key, other = b'\0\0\0\1\x67ps\0\0\1\x65', b'\0\0\0\1\x41'
        for number in range(20):
            data = (other if number % 10 else key) + bytes(2000)
            video.publish(CompressedVideo(data=data, format='h264', frame_id='lens'))
        run.eventually(lambda: recorder._box.held(0)[1] > 20 * 2000, 'all came')
        two = answers(2)
        assert all(answer.success for answer in two), two
        found = sorted((tmp_path / 'events').iterdir())
        assert len(found) == 2 and all(str(path) in str(two) for path in found)
        for path in found:
            with Reader(path) as reader:
                assert messages_of(reader)['/image_raw/foxglove'] == 20
        (tmp_path / 'events').rename(tmp_path / 'moved')
        (tmp_path / 'events').touch()
        (answer,) = answers(1)
        assert not answer.success and "can't be made" in answer.message


@pytest.mark.parametrize('step_s', [-3600, 3600])
def test_a_step_of_the_system_clock_costs_the_black_box_nothing(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    real, step_ns = time.time_ns, 0
    monkeypatch.setattr(time, 'time_ns', lambda: real() + step_ns)
    with black_box(free_domain, tmp_path) as (run, recorder, video, answers):
        run.eventually(lambda: video.get_subscription_count() == 1, 'it subscribes')
        for count in (1, 2):
            video.publish(CompressedVideo(data=b'\0\0\0\1\x65' + bytes(2000), format='h264'))
            run.eventually(lambda now=count: recorder._box.held(0)[1] > now * 2000, 'it came')
            step_ns = step_s * 10**9
        (answer,) = answers(1)
        assert answer.success, answer
        now_ns = time.time_ns()
        (path,) = (tmp_path / 'events').iterdir()
        with Reader(path) as reader:
            found = reader.messages()  # on a busy machine also messages of /diagnostics
            times = [at for topic, at, _ in found if topic.topic == '/image_raw/foxglove']
        assert len(times) == 2 and now_ns - 60 * 10**9 < times[0] <= times[1] <= now_ns
