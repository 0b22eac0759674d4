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
The GStreamer node in this process, its camera in another context or process.

``test_gstreamer_processes.py`` runs these cases in a process that has GStreamer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import tempfile
import threading
from typing import Any

import av
from ffmpeg_image_transport_msgs.msg import FFMPEGPacket
from foxglove_msgs.msg import CompressedVideo
from link.gstreamer.feed_cases import spy
from long_form import LONG
from nodes.programs import parameters, Program
from nodes.ros_kit import Managed, status
import numpy as np
import pytest
from rclpy.qos import QoSProfile

from zc_perception import FramePublisher, FrameSubscription
from zc_perception.nodes.gstreamer import GStreamerNode

WIDTH, HEIGHT = 320, 240
FRAMES = 300 if LONG else 30
DEEP = QoSProfile(depth=FRAMES)
STEP_NS = 1_000_000_007


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a short folder for sockets: *tmp_path* may be too long for their addresses."""
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setenv('ZC_RUNTIME_DIR', f'{short}/run')
        yield


def luma(number: int) -> Any:
    """Return a picture with slopes, and an edge that moves with *number*."""
    across, down = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    wave = 100 + 60 * np.sin((across + 2 * number) / 25) * np.cos(down / 30)
    return np.where(across < (3 * number) % WIDTH, wave, wave + 30).astype(np.uint8)


def number_of(stamp: Any) -> int:
    """Return the picture's number; fail unless the stamp is exact."""
    number, rest = divmod(stamp.sec * 1_000_000_000 + stamp.nanosec, STEP_NS)
    assert not rest, stamp
    return int(number)


def decoded(units: list[Any]) -> list[Any]:
    """Return the luma of each picture, decoded by FFmpeg."""
    context = av.CodecContext.create('h264', 'r')
    frames = [frame for unit in units for frame in context.decode(av.Packet(bytes(unit.data)))]
    return [
        np.frombuffer(frame.planes[0], np.uint8).reshape(HEIGHT, -1)[:, :WIDTH]
        for frame in [*frames, *context.decode(None)]
    ]


def psnr(shown: Any, number: int) -> float:
    error = np.mean((shown.astype(float) - luma(number).astype(float)) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def put(frames: FramePublisher, number: int) -> int:
    """Publish a numbered picture, whose stamp encodes the number."""
    with frames.loan(wait_s=60.0) as out:
        out.planes[0][:], out.planes[1][:] = luma(number), 128
        out.stamp = number * STEP_NS
    return number


@pytest.mark.parametrize('encoder', ['x264enc', 'openh264enc'])
def test_h264_is_the_frames_pictures_with_their_stamps(encoder: str, free_domain: int) -> None:
    with Managed(free_domain) as run:
        # With such a long GOP, a late viewer sees nothing unless the node sends a key frame.
        node = run.make(GStreamerNode, {'encoder': encoder, 'gop_size': 1000})
        node.start()
        frames = FramePublisher(run.manager, 'image_raw', width=WIDTH, height=HEIGHT)
        run.eventually(lambda: status(node, 'link').values['rung'] == 'shared_memory')
        for number in (1, 2, 3):
            put(frames, number)
            run.eventually(lambda n=number: status(node, 'link').values['received'] == n)
        assert node.feed.statistics().frames == 0
        assert status(node, 'gstreamer').message.startswith('idle')
        videos, packets = list[CompressedVideo](), list[FFMPEGPacket]()
        read = run.manager.create_subscription
        read(CompressedVideo, 'image_raw/foxglove', videos.append, DEEP)
        read(FFMPEGPacket, 'image_raw/ffmpeg', packets.append, DEEP)
        run.eventually(lambda: status(node, 'gstreamer').values['listeners'] == 2)
        wanted = list[int]()
        for _ in range(FRAMES):
            wanted.append(put(frames, 4 + len(wanted)))
            run.eventually(lambda: len(videos) == len(packets) == len(wanted))
        assert [number_of(video.timestamp) for video in videos] == wanted
        assert [number_of(packet.header.stamp) for packet in packets] == wanted
        assert {(v.format, v.frame_id) for v in videos} == {('h264', packets[0].header.frame_id)}
        assert {(p.encoding, p.width, p.height) for p in packets} == {('h264', WIDTH, HEIGHT)}
        assert [bytes(p.data) for p in packets] == [bytes(v.data) for v in videos]
        assert packets[0].flags == 1 and {packet.flags for packet in packets} == {0, 1}
        quality = [psnr(*each) for each in zip(decoded(videos), wanted, strict=True)]
        assert min(quality) >= 35, quality
        late, shown = list[CompressedVideo](), list[Any]()
        read(CompressedVideo, 'image_raw/foxglove', late.append, DEEP)

        def see() -> list[Any]:
            done = len(videos)
            put(frames, 4 + done)
            run.eventually(lambda: len(videos) > done)
            shown[:] = decoded(late)
            return shown

        run.eventually(see)
        assert psnr(shown[-1], number_of(late[-1].timestamp)) >= 35
        # A picture may arrive before its frame is counted.
        run.eventually(
            lambda: node.ledger.count('gstreamer') == node.feed.statistics().frames == len(videos)
        )
        seen = node.feed.statistics()
        assert (seen.unknown, seen.reordered, seen.bare, seen.lost) == (0, 0, 0, 0), seen


def test_a_picture_of_an_odd_size_is_scaled_to_the_even_one_below(free_domain: int) -> None:
    with Managed(free_domain) as run:
        run.make(GStreamerNode, {}).start()
        videos = list[CompressedVideo]()
        run.manager.create_subscription(CompressedVideo, 'image_raw/foxglove', videos.append, DEEP)
        size = {'width': 65, 'height': 33}
        with FramePublisher(run.manager, 'image_raw', **size, format='rgb8') as frames:

            def came() -> bool:
                with frames.loan() as out:
                    out.planes[0][:] = 128
                return bool(videos)

            run.eventually(came)
        context = av.CodecContext.create('h264', 'r')
        context.decode(av.Packet(bytes(videos[0].data)))
        assert (context.width, context.height) == (64, 32)


def test_a_message_package_of_which_only_parts_are_there_costs_its_own_topic(
    free_domain: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with Managed(free_domain) as run:
        with monkeypatch.context() as patch:
            patch.delattr('foxglove_msgs.msg.CompressedVideo')
            node = run.make(GStreamerNode, {})
            node.trigger_configure()
        run.eventually(lambda: run.manager.count_publishers('image_raw/ffmpeg'))
        assert not run.manager.count_publishers('image_raw/foxglove')
    assert 'foxglove_msgs (/image_raw/foxglove), of which only parts are here: Attr' in (
        capfd.readouterr().err
    )


def test_a_stuck_pipeline_over_another_process_costs_its_own_frames_only(free_domain: int) -> None:
    others: list[int] = []
    camera = parameters(width=320, height=240, framerate=50.0, heap='memfd')
    let_go = threading.Event()

    def hang(_buffer: int) -> int:
        let_go.wait()
        return 1

    with (
        Program('capture_node', *camera, domain=free_domain, cold=True).start('[capture]: ready'),
        Managed(free_domain) as run,
    ):
        node = run.make(GStreamerNode, {'pipeline': 'identity name=spy ! fakesink', 'window': 3})
        node.start()
        FrameSubscription(run.manager, 'image_raw', lambda frame: others.append(frame.sequence))
        run.eventually(lambda: status(node, 'link').values['rung'] == 'shared_memory')
        run.eventually(lambda: node.feed.statistics().frames >= 50 and others)
        assert not node.ledger.count('gstreamer') and not node.feed.statistics().mapped
        probe = spy(node.feed, 'spy', hang)
        try:
            run.eventually(lambda: "doesn't give frames back" in status(node, 'link').message)
            assert node.feed.statistics().held == 3
            seen = len(others)
            run.eventually(lambda: len(others) >= seen + 50)
            assert node.feed.statistics().held == 3
        finally:
            let_go.set()
        frames, feed = node.feed.statistics().frames, node.feed
        run.eventually(lambda: feed.statistics().frames >= frames + 20)
        node.stop()
        run.eventually(lambda: feed.statistics().held == 0)
    del probe
