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

"""The plain topics that a recorder takes: found in the graph by name, of any type, as bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
import importlib
import re
import time
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
import yaml

from zc_perception.camera.mcap_file import Topic
from zc_perception.link.rclpy_compat import create_reader
from zc_perception.lookout import LOOKOUT

_LOOK_S = 0.1  # what is published before a topic is seen is lost
_DEPTH = 100
_RULE = '=' * 80
_NAMES = {'double': 'float64', 'float': 'float32', 'boolean': 'bool', 'octet': 'byte'}
_SEQUENCE = re.compile(r'sequence<([^,]+)(?:, (\d+))?>')
_BOUNDED = re.compile(r'(w?string)<(\d+)>')
_NESTED = re.compile(r'\w+/\w+')


def message_class(msgtype: str) -> type[Any]:
    """
    Return the class of a message type, such as ``sensor_msgs/msg/CameraInfo``.

    :raises ImportError: its package isn't installed, or has no such message.
    """
    package, _, name = msgtype.partition('/msg/')
    found: type[Any] | None = getattr(importlib.import_module(f'{package}.msg'), name, None)
    if found is None:
        raise ImportError(f'package {package} has no message {name}')
    return found


def definition_of(kind: type[Any]) -> str:
    """
    Return a message type's fields and those of the types in it, as ``.msg`` files have them.

    They come from the Python class, since not every installation has the files.
    """
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
    """Return the QoS that publishers offer, in rosbag2's form: it plays the topic with it."""
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
    Subscribes to topics as they appear.

    :param names: relative to the node, or with ``*`` for any part of a name.
    :param take: gets each message, serialised, with the time when it came; on the executor's
        thread. *latched*: late subscribers get it too.
    :param warn: told why a topic can't be taken.
    """

    def __init__(
        self,
        node: Node,
        names: Sequence[str],
        take: Callable[[Topic, bytes, int, bool], object],
        warn: Callable[[str], object],
    ) -> None:
        self._node = node
        self._patterns = [self._resolved(name) for name in names]
        self._take = take
        self._warn = warn
        self._readers: dict[str, Any] = {}
        self._look()  # before another thread does: a topic is subscribed to once
        self._watch = LOOKOUT.watch(_LOOK_S, self._look)

    def _resolved(self, name: str) -> str:
        if '*' not in name:
            return str(self._node.resolve_topic_name(name))
        return name if name.startswith('/') else f'{self._node.get_namespace().rstrip("/")}/{name}'

    @property
    def names(self) -> list[str]:
        """The topics that are taken."""
        return sorted(self._readers)

    def _look(self) -> None:
        for name, types in self._node.get_topic_names_and_types():
            if name in self._readers or not any(
                fnmatchcase(name, pattern) for pattern in self._patterns
            ):
                continue
            offers = [
                writer.qos_profile for writer in self._node.get_publishers_info_by_topic(name)
            ]
            if offers:
                self._subscribe(name, types[0], offers)

    def _subscribe(self, name: str, msgtype: str, offers: Sequence[QoSProfile]) -> None:
        try:
            kind = message_class(msgtype)
        except ImportError as error:
            self._warn(f"topic '{name}' is not recorded: {error}; install its package here")
            return
        # QoS that suits all publishers of the topic, chosen as rosbag2 does.
        latched = _is_latched(offers)
        careful = all(each.reliability == ReliabilityPolicy.RELIABLE for each in offers)
        qos = QoSProfile(
            depth=_DEPTH,
            reliability=ReliabilityPolicy.RELIABLE if careful else ReliabilityPolicy.BEST_EFFORT,
            durability=(
                DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
            ),
        )
        metadata = (('offered_qos_profiles', offered_qos(offers)),)
        topic = Topic(name, msgtype, definition_of(kind), metadata)

        def on_message(content: bytes) -> None:
            self._take(topic, content, time.time_ns(), latched)

        self._readers[name] = create_reader(self._node, kind, name, on_message, qos, raw=True)

    def close(self) -> None:
        """Take no more. Idempotent."""
        self._watch.stop()
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            self._node.destroy_subscription(reader)
