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
The node of ``zc_record``: records frames and other topics without slowing a camera.

A frame's pixels are recorded unchanged; if the disk is too slow, some frames are left out. Other
topics are found in the ROS graph by name; they may have any type, because their messages are
recorded as serialised bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
import importlib
from pathlib import Path
import re
import threading
import time
from typing import Any, ClassVar

from rclpy.node import Node
from rclpy.qos import (
    DurabilityPolicy,
    qos_check_compatible,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
)
import yaml

from zc_perception.camera.mcap_file import Topic
from zc_perception.camera.recording import (
    BlackBox,
    check_folder,
    Limits,
    MIB,
    Recorder,
    RecorderStatistics,
)
from zc_perception.errors import ConfigError, FrameReleasedError, one_line
from zc_perception.frame import Frame
from zc_perception.link.announcement import SUFFIX
from zc_perception.link.endpoints import AdaptedSubscription
from zc_perception.link.rclpy_compat import create_reader, name_before_remaps, publishers_of
from zc_perception.link.rungs import ROS_MESSAGE
from zc_perception.local_path import expanded
from zc_perception.log import Seldom
from zc_perception.lookout import LOOKOUT
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.nodes.declarations import NODES
from zc_perception.nodes.frame_links import (
    check_topic,
    subscribe_frames,
    subscription_status,
    user_ids,
)
from zc_perception.nodes.params.qos_overrides import Endpoint
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.nodes.triggers import TriggerService
from zc_perception.observe.diagnostics import ERROR, OK, Part, Row, Status, WARN
from zc_perception.observe.metrics import RecentCount

# Period of the search for new topics. It is short, because messages published before their topic
# is found are lost.
_LOOK_S = 0.1
# Every tenth search also compares the known topics' publishers with our subscriptions.
_COMPARE_EVERY = 10
_MESSAGES = 100
_RULE = '=' * 80
_NAMES = {'double': 'float64', 'float': 'float32', 'boolean': 'bool', 'octet': 'byte'}
_SEQUENCE = re.compile(r'sequence<([^,]+)(?:, (\d+))?>')
_BOUNDED = re.compile(r'(w?string)<(\d+)>')
_NESTED = re.compile(r'\w+/\w+')


def message_class(msgtype: str) -> type[Any]:
    """Return the class of a message type, such as ``sensor_msgs/msg/CameraInfo``."""
    package, _, name = msgtype.partition('/msg/')
    found: type[Any] | None = getattr(importlib.import_module(f'{package}.msg'), name, None)
    if found is None:
        raise ImportError(f'package {package} has no message {name}')
    return found


def definition_of(kind: type[Any]) -> str:
    """Return a message type's definition as in ``.msg`` files, made from its Python class."""
    texts, waiting, known = [], [kind], {kind}
    while waiting:
        each = waiting.pop(0)
        lines = (
            [] if not texts else [_RULE, f'MSG: {each.__module__.split(".")[0]}/{each.__name__}']
        )
        for name, described in each.get_fields_and_field_types().items():
            text = _SEQUENCE.sub(lambda m: f'{m[1]}[{"<=" + m[2] if m[2] else ""}]', described)
            text = _BOUNDED.sub(r'\1<=\2', text)
            base = re.match(r'[\w/]+', text)
            assert base is not None
            lines.append(f'{_NAMES.get(base[0], base[0])}{text[base.end() :]} {name}')
            if _NESTED.fullmatch(base[0]):
                inner = message_class(base[0].replace('/', '/msg/'))
                if inner not in known:
                    known.add(inner)
                    waiting.append(inner)
        texts.append(''.join(f'{line}\n' for line in lines))
    return ''.join(texts)


def offered_qos(profiles: Sequence[QoSProfile]) -> str:
    """Return the QoS of a topic's publishers as rosbag2 writes it, for a replay with that QoS."""
    found = [
        {
            'history': int(profile.history),
            'depth': profile.depth,
            'reliability': int(profile.reliability),
            'durability': int(profile.durability),
            'deadline': _duration(profile.deadline),
            'lifespan': _duration(profile.lifespan),
            'liveliness': int(profile.liveliness),
            'liveliness_lease_duration': _duration(profile.liveliness_lease_duration),
            'avoid_ros_namespace_conventions': bool(profile.avoid_ros_namespace_conventions),
        }
        for profile in profiles
    ]
    found = [each for number, each in enumerate(found) if each not in found[:number]]
    return str(yaml.safe_dump(found, sort_keys=False)).strip()


def _duration(duration: Any) -> dict[str, int]:
    seconds, nanoseconds = divmod(duration.nanoseconds, 1_000_000_000)
    return {'sec': seconds, 'nsec': nanoseconds}


def _is_latched(profiles: Sequence[QoSProfile]) -> bool:
    return all(each.durability == DurabilityPolicy.TRANSIENT_LOCAL for each in profiles)


class RecordedTopics:
    """
    Subscribes to the wanted topics as soon as they appear in the ROS graph.

    :param names: topic names; a relative name gets the node's namespace; ``*`` matches any text.
    :param take: called on the executor's thread with topic, serialised message, time of arrival in
        ns, and *latched*: whether the message should be kept for late subscribers.
    :param warn: called with the reason why a topic can't be recorded.
    :param frames: the topic whose frames the node records itself: this object leaves out the
        topic's messages. It also leaves out the announcements that publishers of frames make.
    """

    def __init__(
        self,
        node: Node,
        names: Sequence[str],
        take: Callable[[Topic, bytes, int, bool], object],
        warn: Callable[[str], object],
        frames: str = '',
    ) -> None:
        self._node = node
        self._frames = frames
        self._patterns = [self._resolved(name) for name in names]
        self._take = take
        self._warn = warn
        self._readers: dict[str, Any] = {}
        self._types: dict[str, str] = {}
        self._looks = 0
        self._look()  # must end before the next line starts the calls of _look on another thread
        self._watch = LOOKOUT.watch(_LOOK_S, self._look)

    def _resolved(self, name: str) -> str:
        if '*' not in name:
            return str(self._node.resolve_topic_name(name))
        return name if name.startswith('/') else f'{self._node.get_namespace().rstrip("/")}/{name}'

    @property
    def names(self) -> list[str]:
        """Sorted names of the topics that are recorded now."""
        return sorted(self._readers)

    def _look(self) -> None:
        self._looks += 1
        compares = self._looks % _COMPARE_EVERY == 0
        for name, _ in self._node.get_topic_names_and_types():
            if name in self._readers and not (compares and self._drop_if_unsuited(name)):
                continue
            if name == self._frames or name.endswith(SUFFIX):
                continue
            if not any(fnmatchcase(name, pattern) for pattern in self._patterns):
                continue
            writers = publishers_of(self._node, name)
            if not writers:
                continue
            msgtype = writers[0].topic_type  # the graph's types also include those of subscribers
            offers = [each.qos_profile for each in writers if each.topic_type == msgtype]
            try:
                self._subscribe(name, msgtype, offers)
            # An incomplete message package can raise any exception. Go on with the other topics.
            except Exception as error:
                self._warn(
                    f"topic '{name}' is not recorded: {one_line(error)}; "
                    f'install the whole package of {msgtype}'
                )

    def _drop_if_unsuited(self, name: str) -> bool:
        """
        End the subscription of a topic if the subscription's QoS doesn't suit a new publisher.

        :returns: whether the subscription was ended.
        """
        wanted, kept = self._readers[name].qos_profile, self._types[name]
        writers = publishers_of(self._node, name)
        for other in {each.topic_type for each in writers} - {kept}:
            self._warn(
                f"topic '{name}' has a publisher of type {other}, whose messages are not "
                f'recorded, because the topic is recorded as {kept}: give that publisher another '
                'topic'
            )
        writers = [each for each in writers if each.topic_type == kept]
        fits = [qos_check_compatible(writer.qos_profile, wanted)[0] for writer in writers]
        if QoSCompatibility.ERROR not in fits:
            return False
        self._warn(
            f"topic '{name}' has a new publisher with another QoS; the recorder subscribes again, "
            'and a few messages may be missing'
        )
        self._node.destroy_subscription(self._readers.pop(name))
        return True

    def _subscribe(self, name: str, msgtype: str, offers: Sequence[QoSProfile]) -> None:
        if '/msg/' not in msgtype:
            self._warn(
                f"topic '{name}' is not recorded, because its type {msgtype} belongs to a service "
                "or action; 'ros2 bag record' can record it"
            )
            return
        unmapped = name_before_remaps(self._node, name)
        if (other := self._node.resolve_topic_name(unmapped)) != name:
            self._warn(
                f"topic '{name}' is not recorded, because a remap of this node turns this name "
                f"into '{other}'; record it by a zc_record without that remap"
            )
            return
        kind = message_class(msgtype)
        # By rosbag2's rules: choose a QoS that is compatible with all publishers of the topic.
        latched = _is_latched(offers)
        careful = all(each.reliability == ReliabilityPolicy.RELIABLE for each in offers)
        qos = QoSProfile(
            depth=_MESSAGES,
            reliability=ReliabilityPolicy.RELIABLE if careful else ReliabilityPolicy.BEST_EFFORT,
            durability=(
                DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
            ),
        )
        metadata = (('offered_qos_profiles', offered_qos(offers)),)
        topic = Topic(name, msgtype, definition_of(kind), metadata)

        def on_message(content: bytes) -> None:
            self._take(topic, content, time.time_ns(), latched)

        self._types[name] = msgtype
        self._readers[name] = create_reader(
            self._node, kind, unmapped, on_message, qos, raw=True
        )

    def close(self) -> None:
        """End all subscriptions. Idempotent."""
        self._watch.stop()
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            self._node.destroy_subscription(reader)


_WAIT_S = 0.1
# The node copies each frame as soon as it comes, and then releases it. So the node holds at most
# two frames: the one that it copies, and the next one.
_HELD = 2
_DEPTH = 16
RECORDING = Part(
    'recording',
    Row(
        lambda s: s.failure,
        ERROR,
        '{failure}',
        'make room on the disk, then start a new recording',
        'the disk is full or gone',
    ),
    Row(
        lambda s: s.left_out,
        WARN,
        'frames or messages were left out lately: {reason}',
        'dropped_disk_too_slow and refused say how many',
        see='raise `buffer`, or record smaller or fewer frames',
    ),
    Row(
        lambda s: s.rung == ROS_MESSAGE,
        WARN,
        'frames come as converted messages: the recording differs from what the camera gave',
        "record on the camera's host, and let no other node publish image_raw",
    ),
    Row(lambda s: s.finished, OK, 'finished'),
    well='recording',
)


BLACK_BOX = Part(
    'black box',
    Row(
        lambda s: s.failure,
        WARN,
        'the last trigger failed: {failure}',
        'make room on the disk, or call ~/trigger again',
        'the message says why',
    ),
    Row(
        lambda s: not s.videos,
        WARN,
        (
            'nothing is kept: no encoder publishes one of the '
            'topics as foxglove_msgs/CompressedVideo'
        ),
        'start an encoder for the cameras, and name its topics in parameter topics',
    ),
    well='{kept_s:.0f} s are kept',
)


class RecorderNode(PerceptionNode):
    """
    Records the frames of ``image_raw`` (type-adapted), and messages of other topics.

    :param on_finished: called once, on the recorder's thread, when ``max_frames`` or
        ``max_duration`` is reached or writing to the disk has failed.
    """

    SPECS = NODES['recorder']
    CHECKS: ClassVar[Mapping[str, Callable[[Any], object]]] = {
        'shared_memory_users': user_ids,
        'topics': lambda names: [check_topic('topics', name, '*') for name in names],
    }
    ENDPOINTS = (Endpoint('image_raw', 'subscription', adapted=True),)

    def __init__(
        self, *, on_finished: Callable[[], None] | None = None, **node_options: Any
    ) -> None:
        super().__init__('recorder', **node_options)
        self._warn = Seldom(lambda text: self.get_logger().warning(text), 5.0)
        self._on_finished = on_finished
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._recorder: Recorder | None = None
        self._closed_recorder: Recorder | None = None
        self._topics: RecordedTopics | None = None
        self._box: BlackBox | None = None
        self._trigger: TriggerService | None = None
        self._subscription: AdaptedSubscription[Frame] | None = None
        self._taken = self._missing = 0
        # The last frame's number, and the rung (a Choice) by which this frame came. With another
        # Choice, the frames' numbers may begin anew.
        self._last: tuple[int, Any] | None = None
        self._first_s: float | None = None
        self._finished = False
        self._left_out = RecentCount()
        self._conversion_errors = RecentCount()
        self._begin()

    @classmethod
    def check_together(cls, values: Mapping[str, Any], node: str) -> None:
        """Raise ConfigError if parameters set an end that the recording can never reach."""
        box = values['black_box']
        for name in ('max_frames', 'max_duration'):
            if box and values[name]:
                raise ConfigError(
                    f"parameter '{name}' is {values[name]}, but 'black_box' is {box}, and a black "
                    f"box never ends; set '{name}' or 'black_box' to 0"
                )
        if values['max_frames'] and not values['frames']:
            raise ConfigError(
                f"parameter 'max_frames' is {values['max_frames']}, but 'frames' is false, so no "
                "frame is counted; set 'max_duration' instead, or 'frames' to true"
            )

    def _open(self) -> None:
        """Make a black box, or begin a recording; frames come only after activation."""
        path = self.parameters['path']
        if not path:
            raise ConfigError("parameter 'path' is empty; set it to the folder to write")
        self.check_together(self.parameters, self.get_fully_qualified_name())
        self._taken, self._first_s, self._finished = 0, None, False
        self._missing = 0
        limits = Limits(
            self.parameters['buffer'] * MIB,
            self.parameters['split_size'] * MIB,
            round(self.parameters['split_duration'] * 1e9),
            self.parameters['disk_floor'] * MIB,
        )
        folder = Path(expanded(path, 'path'))
        if self.parameters['black_box']:
            check_folder(folder)  # check now: an error at the trigger would lose the event's data
            self._box = BlackBox(self.parameters['black_box'], limits.buffer_bytes)
            self._trigger = TriggerService(self, self._box, folder, limits.floor_bytes)
            return
        self._recorder = Recorder(folder, ledger=self.ledger, limits=limits)
        for sentence in self._recorder.notices:
            self.get_logger().info(sentence)
        if not self.parameters['frames']:
            return
        # Every pixel format suits, because the bytes are written unchanged.
        needs = BufferConstraints(self.get_name(), cpu_access=CpuAccess.READ)
        self._subscription = subscribe_frames(
            self,
            self.parameters,
            self.ledger,
            QoSProfile(depth=_DEPTH),
            held=_HELD,
            constraints=needs,
        )
        self._subscription.pause()

    @property
    def recorder(self) -> Recorder:
        """
        The object that writes the recording.

        The property raises an error before the node is configured, and if ``black_box`` is set.
        """
        if self._recorder is None:
            raise self.lacks('recording')
        return self._recorder

    @property
    def subscription(self) -> AdaptedSubscription[Frame]:
        """The subscription of ``image_raw``, while the node is configured to record frames."""
        if self._subscription is None:
            raise self.lacks('subscription')
        return self._subscription

    def _activate(self) -> None:
        self._flowing, self._last = True, None
        self._stop.clear()
        if self._subscription is not None:
            self._subscription.resume()
        self._topics = RecordedTopics(
            self,
            self.parameters['topics'],
            self._take,
            lambda text: self.warn_once([text]),
            '' if self._subscription is None else self._subscription.topic,
        )
        if self._box is not None:
            return
        self._thread = threading.Thread(target=self._run, name='recorder input', daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set() and not self._finished:
            if self._subscription is None:
                self._first_s = self._first_s or time.monotonic()
                self._stop.wait(_WAIT_S)
            elif (frame := self._subscription.queue.get(_WAIT_S)) is not None:
                self._record(frame)
            most, duration_s = self.parameters['max_frames'], self.parameters['max_duration']
            lasted_s = 0.0 if self._first_s is None else time.monotonic() - self._first_s
            self._finished = (
                self.recorder.failed
                or 0 < most <= self._taken
                or (self._first_s is not None and 0 < duration_s <= lasted_s)
            )
        if self._finished and self._on_finished is not None:
            self._on_finished()

    def _take(self, topic: Topic, content: bytes, log_ns: int, latched: bool) -> None:
        """Give a message to the recorder or the black box; called on the executor's thread."""
        if self._box is not None:
            # Use the steady clock: the system clock may jump while the box keeps messages.
            self._box.take(topic, content, time.monotonic_ns(), latched)
        elif self._flowing:
            self.recorder.put_message(topic, content, log_ns, latched=latched)

    def _record(self, frame: Frame) -> None:
        try:
            with frame:
                kept = self.recorder.put(frame, self.subscription.topic)
        except FrameReleasedError as error:  # the frame's publisher died before the copy was made
            self._warn(str(error), 'released')
            return
        number, choice = frame.data.sequence, self.subscription.choice
        if self._last is not None and self._last[1] == choice:
            self._missing += max(0, number - self._last[0] - 1)
        self._last = number, choice
        if self._first_s is None:
            self._first_s = time.monotonic()
        self._taken += kept
        # After the disk has failed, don't log each frame that was left out: the recording's end
        # reports the failure once.
        if not kept and not self.recorder.failed:
            self._warn(f'frame {frame.data.sequence} was left out: {self._reason()}', 'left out')

    def _reason(self) -> str:
        return (
            self.recorder.statistics().failure
            or "the disk is too slow; raise 'buffer', or record fewer pixels"
        )

    @property
    def finished(self) -> bool:
        """Whether ``max_frames`` or ``max_duration`` is reached, or the disk has failed."""
        return self._finished

    @property
    def failed(self) -> bool:
        """Whether writing to the disk failed in the latest recording."""
        return self._recorder is not None and self._recorder.failed

    def collect_diagnostics(self) -> list[Status]:
        """Return the statuses of lifecycle, black box, recording and frame subscription."""
        found = [self.lifecycle_status()]
        if self._box is not None:
            found.append(self._box_status(self._box))
        if self._recorder is not None:
            found.append(self._recording_status(self._recorder.statistics()))
        if self._subscription is not None:
            found.append(subscription_status(self._subscription, self._conversion_errors))
        return found

    def _box_status(self, box: BlackBox) -> Status:
        kept_s, kept_bytes, videos = box.held(time.monotonic_ns())
        trigger = self._trigger
        values = {
            'kept_s': round(kept_s, 1),
            'bytes': kept_bytes,
            'videos': ', '.join(videos),
            'topics': ', '.join(self._topics.names if self._topics is not None else ()),
            'written': 0 if trigger is None else trigger.written,
        }
        failure = '' if trigger is None else trigger.failure
        return BLACK_BOX.status(values, failure=failure, videos=videos, kept_s=kept_s)

    def _recording_status(self, statistics: RecorderStatistics) -> Status:
        values = {
            'recorded': statistics.recorded,
            'messages': statistics.messages,
            'topics': ', '.join(self._topics.names if self._topics is not None else ()),
            'dropped_disk_too_slow': statistics.dropped,
            'refused': statistics.refused,
            'waiting': statistics.waiting,
            'bytes': statistics.bytes,
            'files': ', '.join(statistics.files),
        }
        return RECORDING.status(
            values,
            failure=statistics.failure if self.recorder.failed else '',
            left_out=self._left_out.see(statistics.refused + statistics.dropped),
            reason=self._reason(),
            rung='' if self._subscription is None else self._subscription.statistics().rung,
            finished=self._finished,
        )

    def _deactivate(self) -> None:
        """Stop taking frames and messages; the file stays open for the next activation."""
        if self._topics is not None:
            self._topics.close()
            self._topics = None
        if self._subscription is not None:
            self._subscription.pause()
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.5)
        self._thread = None

    def _cleanup(self) -> None:
        """Write all frames copied so far and close the file; don't wait long for a stuck disk."""
        unread = 0
        if self._subscription is not None:
            unread = self._subscription.statistics().conversion_errors
            self._subscription.destroy()
            self._subscription = None
        trigger, self._trigger, self._box = self._trigger, None, None
        if trigger is not None:
            trigger.close()
        if self._recorder is None or self._closed_recorder is self._recorder:
            return
        self._closed_recorder = self._recorder
        self._recorder.close()
        done = self._recorder.statistics()
        files = (
            f"'{self.parameters['path']}' ({len(done.files)} files)" if done.files else 'no file'
        )
        left_out = f'{done.dropped} frames and messages left out because the disk was too slow'
        self.get_logger().info(
            f'{done.recorded} frames and {done.messages} messages in {files}, {left_out}, '
            f'{done.refused + unread} frames could not be recorded, {self._missing} never came'
        )
        if self._recorder.failed:
            self.get_logger().error(done.failure)
