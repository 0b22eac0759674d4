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
Strangers in the ROS graph.

Bytes that are no message, announcements that lie, bad producers, impossible pictures and boxes.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from typing import Any

from faults.harness import EVERYBODY, fault, Trial
from faults.program import Running
from faults.witness import spinning, STRANGE
from memory_link import FakeProducer, FrameMessage, pack_frame, PUBLISHER, RawPeer
from nodes.programs import parameters
from nodes.ros_kit import Onlooker
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import String
from vision_msgs.msg import BoundingBox2D, Detection2D, Detection2DArray, ObjectHypothesisWithPose
from waiting import until

from zc_perception.link.announcement import Announcement, host_id
from zc_perception.link.shared_memory import wire

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
_GARBAGE = (
    b'',
    b'\0',
    b'\0\1\0\0',
    b'\0\1\0\0\xff\xff\xff\x7f',
    b'\0\1\0\0\x10\0\0\0abc',
    b'\xff' * 64,
)


class Stranger(Onlooker):
    """A node that says what nobody should, with an executor that takes what comes."""

    def __init__(self, domain: int) -> None:
        super().__init__(domain, 'stranger')
        self.announcements = self.node.create_publisher(String, 'image_raw/_zc', LATCHED)
        self.pictures: list[Image] = []
        self._thread = spinning(self)

    def matched(self, publisher: Any, count: int = 1) -> None:
        """Until somebody reads it."""
        until(
            lambda: publisher.get_subscription_count() >= count,
            f'readers of {publisher.topic_name}',
        )

    def close(self) -> None:
        self.executor.shutdown(timeout_sec=2.0)
        self._thread.join(60.0)
        super().close()


def lies(socket: str) -> list[str]:
    """Announcements that aren't, or that promise what isn't there."""
    good = json.loads(
        Announcement(PUBLISHER, host_id(), socket, 64, 48, ('NV12',), 'memfd').to_json()
    )
    nested = '[' * 100_000
    changed: list[dict[str, Any]] = [
        {'version': 2},
        {'version': '1'},
        {'version': None},
        {'publisher_id': ''},
        {'publisher_id': '../../etc/passwd'},
        {'publisher_id': 'x' * 10_000},
        {'publisher_id': '\0'},
        {'host_id': 5},
        {'socket': 'relative'},
        {'socket': '/' + 'x' * 500},
        {'socket': '/dev/null'},
        {'socket': '/tmp'},
        {'socket': '/nowhere/at/all.sock'},
        {'socket': '\0abstract'},
        {'socket': '/\ud800'},
        {'width': -1},
        {'width': 0},
        {'width': 1e300},
        {'width': True},
        {'height': 2**70},
        {'formats': 'NV12'},
        {'formats': [7]},
        {'formats': []},
        {'formats': ['XXXX:0xffffffffffffffff'] * 1000},
        {'heap': None},
    ]
    return [
        '',
        'null',
        '[]',
        '7',
        '"text"',
        '{',
        nested,
        '{"version": 1}',
        'NaN',
        *(json.dumps(good | change) for change in changed),
    ]


@fault('bytes that are no message', ('what can not be a message is thrown away by the '
                                     'middleware; no node notices'),
       bystanders=EVERYBODY)  # fmt: skip
def garbage(trial: Trial) -> None:
    stage = trial.stage
    with Stranger(stage.domain) as stranger:
        detections = stranger.node.create_publisher(Detection2DArray, 'detections', 10)
        stranger.matched(stranger.announcements, 2)
        for _ in range(trial.times(2, 30)):
            for raw in (*_GARBAGE, trial.random.randbytes(500)):
                for publisher in (stranger.announcements, detections):
                    publisher.publish(raw)
            stage.read_logs()
            time.sleep(0.02)


@fault('announcements that lie', ('who announces nonsense, or a socket that is none, is passed '
                                  'over; the real camera is served as before'),
       bystanders=EVERYBODY)  # fmt: skip
def announcements(trial: Trial) -> None:
    stage = trial.stage
    with Stranger(stage.domain) as stranger:
        stranger.matched(stranger.announcements, 2)
        for _ in range(trial.times(1, 5)):
            for text in lies(str(trial.folder / 'none.sock')):
                stranger.announcements.publish(
                    String(data=text.encode('utf-8', 'replace').decode())
                )
                time.sleep(0.01)
            stage.read_logs()
            # Each of them sounds like a publisher of its own, and there are more than anybody
            # remembers.
            for number in range(trial.random.randint(101, 150)):
                identity = f'{trial.random.getrandbits(128):032x}'
                lie = Announcement(
                    identity,
                    host_id(),
                    str(trial.folder / f'{number}.sock'),
                    64,
                    48,
                    ('NV12',),
                    'memfd',
                )
                stranger.announcements.publish(String(data=lie.to_json()))
                time.sleep(0.005)
            stage.read_logs()
            stage.witness.expect(15, 5)


@fault('a producer that breaks the protocol', ('who is announced and then breaks docs/wire.md '
                                               'loses the connection; frames of the camera go '
                                               'on'),
       bystanders=EVERYBODY)  # fmt: skip
def producer(trial: Trial) -> None:
    stage = trial.stage
    path = stage.folder / 'x'  # short: it is a socket's address
    connections = [0]
    stop = threading.Event()

    def misbehave(fake: FakeProducer) -> None:
        fake.listener.settimeout(0.1)
        while not stop.is_set():
            try:
                sock, _ = fake.listener.accept()
            except TimeoutError:
                continue
            connections[0] += 1
            with RawPeer(sock) as peer, contextlib.suppress(OSError, AssertionError):
                peer.receive()
                _WAYS[connections[0] % len(_WAYS)](fake, peer)

    with Stranger(stage.domain) as stranger, FakeProducer(path) as fake:
        thread = threading.Thread(
            target=misbehave, args=(fake,), name='producer that breaks the protocol'
        )
        thread.start()
        try:
            stranger.matched(stranger.announcements, 2)
            announcement = Announcement(
                PUBLISHER, host_id(), str(path), 64, 48, ('NV12',), 'memfd'
            )
            # Only who has a writer on the topic, too, is a publisher of it.
            stranger.node.create_publisher(Image, 'image_raw', QoSProfile(depth=1))
            stranger.announcements.publish(String(data=announcement.to_json()))
            wanted = trial.times(6, 40)
            stage.meanwhile(lambda: connections[0] >= wanted, 'connections to it')
        finally:
            stop.set()
            thread.join(60.0)
    path.unlink(missing_ok=True)
    trial.note('connections that it broke', connections[0])


def _welcome(peer: RawPeer) -> None:
    peer.send(wire.pack_welcome(wire.Welcome(1, 1, PUBLISHER)))


def _lies_about_its_buffer(fake: FakeProducer, peer: RawPeer) -> None:
    _welcome(peer)
    fake.introduce(peer, sizes=(1 << 40,))


def _sends_a_frame_of_nothing(fake: FakeProducer, peer: RawPeer) -> None:
    _welcome(peer)
    fake.frame(peer)


def _sends_half_a_message(fake: FakeProducer, peer: RawPeer) -> None:
    _welcome(peer)
    peer.send(pack_frame(FrameMessage(7, 1, 1, 1, 2, 3, 4, 0, False), b'x')[:20])


_WAYS = (
    lambda fake, peer: None,
    lambda fake, peer: peer.send(b'garbage'),
    lambda fake, peer: peer.send(b'x' * 5000),
    _lies_about_its_buffer,
    _sends_a_frame_of_nothing,
    _sends_half_a_message,
)


def bad_pictures() -> list[Image]:
    """Pictures that can't be."""
    fields: list[dict[str, Any]] = [
        {'width': 64, 'height': 48, 'step': 64, 'encoding': 'mono8', 'data': b''},
        {'width': 64, 'height': 48, 'step': 1, 'encoding': 'rgb8', 'data': bytes(64 * 48 * 3)},
        {'width': 0, 'height': 0, 'step': 0, 'encoding': 'rgb8'},
        {
            'width': 2**32 - 1,
            'height': 2**32 - 1,
            'step': 2**32 - 1,
            'encoding': 'rgb8',
            'data': bytes(10),
        },
        {'width': 63, 'height': 47, 'step': 63, 'encoding': 'nv12', 'data': bytes(63 * 47)},
        {'width': 64, 'height': 48, 'step': 64, 'encoding': 'no such', 'data': bytes(64 * 48)},
        {'width': 64, 'height': 48, 'step': 128, 'encoding': 'yuv422', 'data': bytes(17)},
        {
            'width': 2,
            'height': 2,
            'step': 6,
            'encoding': 'bgr8',
            'data': bytes(12),
            'is_bigendian': 7,
        },
    ]
    return [Image(**each) for each in fields]


def bad_detections() -> list[Detection2DArray]:
    """Boxes that can't be."""
    arrays = []
    for size, score, name in (
        (math.nan, math.nan, ''),
        (-5.0, 2.0, 'x' * 5000),
        (1e300, -math.inf, '\u2028'),
        (0.0, 0.5, '99999999999999'),
    ):
        box = BoundingBox2D()
        box.center.position.x = box.center.position.y = box.size_x = box.size_y = size
        result = ObjectHypothesisWithPose()
        result.hypothesis.class_id, result.hypothesis.score = name, score
        arrays.append(
            Detection2DArray(
                detections=[Detection2D(bbox=box, results=[result] * 3), Detection2D()]
            )
        )
    arrays.append(Detection2DArray(detections=[Detection2D()] * 3000))
    return arrays


@fault('impossible pictures and boxes', ('messages that can not be true cost themselves: nodes '
                                         'that take plain ones count them and go on'),
       bystanders=EVERYBODY)  # fmt: skip
def messages(trial: Trial) -> None:
    stage = trial.stage
    programs = [
        Running(
            'inference_node',
            *parameters(model='hog'),
            '-r',
            'image_raw:=strange',
            '-r',
            'detections:=strange_boxes',
            '-r',
            '__node:=inference_2',
            domain=stage.domain,
        ),
        Running('overlay_node', '--ros-args', '-r', '__node:=overlay', domain=stage.domain),
    ]
    with contextlib.ExitStack() as ending:
        for program in programs:
            ending.enter_context(program)
        programs[0].start('[inference_2]: ready')
        programs[1].start('[overlay]: ready')
        stranger = ending.enter_context(Stranger(stage.domain))
        pictures = stranger.node.create_publisher(Image, 'strange', 10)
        boxes = stranger.node.create_publisher(Detection2DArray, 'detections', 10)
        stranger.node.create_subscription(Image, 'detections/image', stranger.pictures.append, 1)
        stranger.matched(pictures)
        stranger.matched(boxes, 2)
        stage.meanwhile(lambda: stranger.pictures, 'pictures with boxes')
        for _ in range(trial.times(1, 10)):
            for picture in bad_pictures():
                pictures.publish(picture)
                time.sleep(0.02)
            for array in bad_detections():
                array.header.stamp, array.header.frame_id = (
                    stranger.pictures[-1].header.stamp,
                    STRANGE,
                )
                boxes.publish(array)
                time.sleep(0.02)
            stage.read_logs()
        pictures.publish(
            Image(width=128, height=128, step=384, encoding='rgb8', data=bytes(128 * 384))
        )
        drawn = len(stranger.pictures)
        stage.meanwhile(lambda: len(stranger.pictures) > drawn + 3, 'pictures afterwards')
        for program in programs:
            trial.must(
                program.alive and program.end() == 0,
                f'programs that ended badly: {program.output[-400:]}',
            )
            trial.must_be_zero('tracebacks', program.output.count('Traceback'))
