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
Each fault is reported in ``/diagnostics`` within two seconds, with advice.

The report ends soon after the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodes.fault_kit import FaultyAccelerator, fleet, Reader
from nodes.ros_kit import overrides, set_or_why_not, spun
import pytest
import rclpy
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image

from zc_perception.camera import recording, supervisor
from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedSubscription
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.recorder import RecorderNode
from zc_perception.npu import recovering_device
from zc_perception.observe import diagnostics, metrics

OK, WARN, ERROR = 0, 1, 2


@pytest.fixture(autouse=True)
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the times of reports and retries."""
    monkeypatch.setattr(diagnostics, 'PERIOD_S', 0.2)
    monkeypatch.setattr(metrics, 'RECENT_S', 0.5)
    monkeypatch.setattr(recovering_device, 'LONGEST_DELAY_S', 0.2)
    monkeypatch.setattr(supervisor, 'LAST_RETRY_S', 0.5)


def test_a_consumer_that_releases_nothing_is_named(free_domain: int) -> None:
    with fleet(free_domain, capture={'slots': 6}) as run:
        kept: list[Frame] = []
        hoarding = [True]

        def keep(frame: Frame) -> None:
            if hoarding:
                kept.append(frame.keep())

        adapter = frame_adapter('rgb8', run.capture.ledger, holder='x')
        subscription = AdaptedSubscription(
            run.capture,
            adapter,
            'image_raw',
            QoSProfile(depth=1),
            callback=keep,
            holder='slow_tracker',
        )
        subscription.update_rung()
        run.reader.comes_to(
            'capture: link',
            WARN,
            'slow_tracker gets no more frames, because it holds all 1 frame(s) that it may hold',
            'see why slow_tracker releases none: it is too slow, or does not call release()',
        )
        run.well('capture: pool')
        run.well('capture: camera')
        hoarding.clear()
        for frame in kept:
            frame.release()
        run.well('capture: link')
        subscription.destroy()


def test_an_accelerator_that_is_lost(free_domain: int, logged: Callable[[], str]) -> None:
    with fleet(free_domain) as run:
        first, part = run.inference.accelerator, 'inference: accelerator'
        run.accelerator.present = False
        run.reader.comes_to(
            part,
            ERROR,
            'recovering for',
            'attempt ',
            'last error: no card: check lspci',
            'dmesg | grep -i metis',
        )
        assert (
            run.reader.values(part)['device_losses'],
            run.reader.values(part)['recovered'],
        ) == ('1', '0')
        frozen = run.inference.processed
        run.until(
            lambda: int(run.reader.values(part)['refused_recovering']) > 5,
            'frames that are dropped meanwhile, and counted',
        )
        assert (
            run.inference.processed - frozen <= 1
            and isinstance(first, FaultyAccelerator)
            and first.closed
        )
        run.accelerator.present = True
        run.well(part)
        assert (
            run.reader.values(part)['recovered'] == '1' and run.inference.accelerator is not first
        )
        run.well('inference: detections')
        run.until(lambda: run.inference.processed > frozen + 5, 'detections again')
        run.until(lambda: 'the device is back' in logged(), 'a line in the log')
        assert logged().count('the device was lost: ') == 1
    assert run.inference.accelerator.closed, 'the node closes the last one'


def test_a_model_that_is_too_slow_for_the_camera(free_domain: int) -> None:
    with fleet(free_domain) as run:
        run.accelerator.job_s = 0.05
        run.reader.comes_to(
            'inference: detections', WARN, 'the model is too slow: only', 'take a smaller model'
        )
        # At a lower wanted rate the check begins anew, and soon passes.
        assert not set_or_why_not(run.inference, 'max_rate', 8.0)
        run.reader.comes_to('inference: detections', OK, 'frames per second')


def test_an_accelerator_that_refuses_frames_is_not_called_slow(free_domain: int) -> None:
    with fleet(free_domain) as run:
        run.accelerator.refused = 10
        comes_to = run.reader.comes_to
        gives = 'only 0.0 of ', 'frames per second give results', ' fail', 'see part accelerator'
        comes_to('inference: detections', ERROR, *gives)
        refused = 'the buffer was refused: EINVAL'
        lost = 'every frame is lost, ', refused, 'the error says what the device refused'
        comes_to('inference: accelerator', ERROR, *lost)
        none = 'in_process: the accelerator takes none of the frames: '
        comes_to('inference: link', ERROR, none + refused)
        assert 'too slow' not in run.reader.text('inference: detections')
        run.accelerator.refused = 0
        run.well('inference: link')
        run.well('inference: detections')
        run.well('inference: accelerator')


def test_a_disk_that_is_full(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = recording._open_new

    def opened(path: Path) -> Any:
        return open('/dev/full', 'wb', buffering=0) if path.stem == 'full_0' else real(path)

    monkeypatch.setattr(recording, '_open_new', opened)
    with fleet(free_domain) as run:
        assert run.group is not None
        values = {'path': str(tmp_path / 'full'), 'disk_floor': 0}
        recorder = RecorderNode(
            context=run.context,
            parameter_overrides=[Parameter(name, value=value) for name, value in values.items()],
        )
        run.group.add_node(recorder)
        try:
            recorder.start()
            run.reader.comes_to(
                'recorder: recording',
                ERROR,
                'No space left on device',
                'make room, then start a new recording',
            )
            for step in (recorder.trigger_deactivate, recorder.trigger_cleanup):
                step()
            assert not set_or_why_not(recorder, 'path', str(tmp_path / 'room'))
            recorder.start()
            run.well('recorder: recording')
            on_disk = tmp_path / 'room' / 'room_0.mcap'
            run.until(
                lambda: on_disk.exists() and on_disk.stat().st_size > 10_000, 'frames on disk'
            )
        finally:
            recorder.stop()
            recorder.destroy_node()


PERIOD_S = 0.05
WIDTH, HEIGHT = 64, 128


class Foreigner(Reader):
    """Another program: it publishes pictures in changing encodings, and reads diagnostics."""

    def __init__(self, domain: int) -> None:
        super().__init__(domain)
        self.encoding, self.pixel_bytes = '32FC1', 4
        self._sent = 0
        self._images = self.node.create_publisher(Image, 'image_raw', 2)
        self.node.create_subscription(Image, 'detections/image', lambda _: None, 2)
        self.node.create_timer(PERIOD_S, self._send)

    def _send(self) -> None:
        self._sent += 1
        image = Image(
            width=WIDTH, height=HEIGHT, encoding=self.encoding, step=WIDTH * self.pixel_bytes
        )
        image.header.frame_id, image.header.stamp.sec, image.header.stamp.nanosec = (
            'lens',
            1000,
            self._sent,
        )
        image.data = bytes(image.step * HEIGHT)
        self._images.publish(image)


def test_each_node_says_that_messages_cannot_be_converted_and_nobody_blames_the_camera(
    context: rclpy.Context, free_domain: int, tmp_path: Path
) -> None:
    with Foreigner(free_domain) as foreigner:
        nodes = [
            InferenceNode(
                context=context, parameter_overrides=overrides({'model': 'hog', 'timeout': 20.0})
            ),
            OverlayNode(context=context),
            RecorderNode(
                context=context,
                parameter_overrides=overrides({'path': str(tmp_path / 'a'), 'disk_floor': 0}),
            ),
        ]
        with spun(context, *nodes):
            for name in ('inference', 'overlay', 'recorder'):
                foreigner.comes_to(
                    f'{name}: link', WARN, 'message(s) could not be converted lately'
                )
            foreigner.comes_to(
                'overlay: overlay',
                WARN,
                'no picture: ',
                'message(s) could not be converted lately',
            )
            foreigner.comes_to(
                'inference: detections',
                ERROR,
                'no frame could be converted lately',
                'see part link',
            )
            foreigner.encoding, foreigner.pixel_bytes = 'rgb8', 3
            foreigner.comes_to('inference: detections', OK, 'frames per second')
            foreigner.comes_to('overlay: overlay', OK)
