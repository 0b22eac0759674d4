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

The report ends soon after the fault. The nodes are real, and the accelerator fails on command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
import time
from typing import Any
from unittest.mock import Mock

from builtin_interfaces.msg import Time
from nodes.ros_kit import alone, overrides, Reader, ros, set_or_why_not, spun
import numpy as np
import pytest
import rclpy
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image

from zc_perception.camera import recording, supervisor
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, ConfigError, DeviceLostError
from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedSubscription
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.process import NodeGroup
from zc_perception.nodes.recorder import RecorderNode
from zc_perception.npu import recovering_device
from zc_perception.npu.accelerator import Capabilities, ImportHandle
from zc_perception.npu.manifest import ModelManifest
from zc_perception.npu.onnx.accelerator import OnnxAccelerator
from zc_perception.observe import diagnostics, metrics

OK, WARN, ERROR = 0, 1, 2
CAMERA = {'width': 64, 'height': 128, 'framerate': 30.0, 'heap': 'memfd', 'pattern': 'bars'}


class AcceleratorFaults:
    """The accelerator's present faults, and a factory of accelerators with them."""

    present = True
    job_s = 0.0
    refuses = False

    def __call__(self) -> FaultyAccelerator:
        if not self.present:
            raise AcceleratorError('no card: check lspci')
        return FaultyAccelerator(self)


class FaultyAccelerator(OnnxAccelerator):
    def __init__(self, faults: AcceleratorFaults) -> None:
        super().__init__(CopyLedger(), {'threads': 1})
        self._faults = faults
        self.closed = False

    def load(self, manifest: ModelManifest) -> None:
        """Load the model, which then finds nothing and takes ``job_s``."""
        super().load(manifest)

        def run(*_: object) -> list[RawTensor]:
            time.sleep(self._faults.job_s)
            return [RawTensor(np.zeros((0, 6), np.float32))]

        self._thread.engine.run = run  # type: ignore[method-assign, union-attr]

    def capabilities(self) -> Capabilities:
        return Capabilities('onnx', 'a double', copy_free=True, max_in_flight=2, may_hang=False)

    def import_frame(self, frame: Frame) -> ImportHandle:
        if not self._faults.present:
            raise DeviceLostError('the card was removed')
        if self._faults.refuses:
            raise AcceleratorError('the buffer was refused: EINVAL')
        return super().import_frame(frame)

    def close(self) -> None:
        self.closed = True
        super().close()


class Fleet(Reader):
    """Running capture and inference nodes, the accelerator's faults, and another program."""

    context: rclpy.Context
    accelerator: AcceleratorFaults
    capture: CaptureNode
    inference: InferenceNode
    group: NodeGroup

    def well(self, *names: str) -> None:
        for name in names:
            self.comes_to(name, OK)


@contextmanager
def fleet(domain: int, **capture: Any) -> Iterator[Fleet]:
    """Yield running nodes whose diagnostics are all OK."""
    with ros(domain) as context, Fleet(domain) as run:
        run.context, run.accelerator = context, AcceleratorFaults()
        run.capture = CaptureNode(
            context=context, parameter_overrides=overrides(CAMERA | capture)
        )
        run.inference = InferenceNode(
            accelerator_factory=run.accelerator,
            context=context,
            parameter_overrides=overrides({'model': 'hog', 'timeout': 20.0}),
        )
        with spun(context, run.capture, run.inference) as run.group:
            run.well('capture: camera', 'capture: pool', 'capture: link')
            run.well('inference: accelerator', 'inference: detections')
            run.until(lambda: run.inference.processed > 15, 'detections')
            yield run


@pytest.fixture(autouse=True)
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the times of reports and retries."""
    monkeypatch.setattr(diagnostics, 'PERIOD_S', 0.2)
    monkeypatch.setattr(metrics, 'RECENT_S', 0.5)
    monkeypatch.setattr(recovering_device, 'LONGEST_DELAY_S', 0.2)
    monkeypatch.setattr(supervisor, 'LAST_RETRY_S', 0.5)


def test_a_consumer_that_releases_nothing_is_named(free_domain: int) -> None:
    with fleet(free_domain, slots=6) as run:
        kept: list[Frame] = []
        hoarding = [True]
        subscription = AdaptedSubscription(
            run.capture,
            frame_adapter('rgb8', run.capture.ledger, holder='x'),
            'image_raw',
            QoSProfile(depth=1),
            callback=lambda frame: kept.append(frame.keep()) if hoarding else None,
            holder='slow_tracker',
        )
        subscription.update_rung()
        run.comes_to(
            'capture: link',
            WARN,
            'slow_tracker gets no more frames, because it holds all 1 frame(s) that it may hold',
            'see why slow_tracker releases none: it is too slow, or does not call release()',
        )
        run.well('capture: pool', 'capture: camera')
        hoarding.clear()
        for frame in kept:
            frame.release()
        run.well('capture: link')
        subscription.destroy()


def test_an_accelerator_that_is_lost(free_domain: int, logged: Callable[[], str]) -> None:
    with fleet(free_domain) as run:
        first, part = run.inference.accelerator, 'inference: accelerator'
        run.accelerator.present = False
        error = 'last error: no card: check lspci', 'dmesg | grep -i metis'
        run.comes_to(part, ERROR, 'recovering for', 'attempt ', *error)
        values = run.values(part)
        assert (values['device_losses'], values['recovered']) == ('1', '0')
        frozen = run.inference.processed
        run.until(
            lambda: int(run.values(part)['refused_recovering']) > 5,
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
            run.values(part)['recovered'] == '1' and run.inference.accelerator is not first
        )
        run.well('inference: detections')
        run.until(lambda: run.inference.processed > frozen + 5, 'detections again')
        run.until(lambda: 'the device is back' in logged(), 'a line in the log')
        assert logged().count('the device was lost: ') == 1
    assert run.inference.accelerator.closed, 'the node closes the last one'


def test_a_model_that_is_too_slow_for_the_camera(free_domain: int) -> None:
    with fleet(free_domain) as run:
        run.accelerator.job_s = 0.05
        run.comes_to(
            'inference: detections', WARN, 'the model is too slow: only', 'take a smaller model'
        )
        # At a lower wanted rate the check begins anew, and soon passes.
        assert not set_or_why_not(run.inference, 'max_rate', 8.0)
        run.comes_to('inference: detections', OK, 'frames per second')


def test_a_model_is_not_called_slow_when_the_camera_stops(free_domain: int) -> None:
    with fleet(free_domain) as run:
        part, said = 'inference: detections', set[str]()

        def heard(words: str) -> bool:
            # On a machine that stops for seconds the model may be slow, and then it drops frames.
            if run.values(part).get('dropped_newest_wins') == '0':
                said.add(run.text(part))
            return words in run.text(part)

        assert not set_or_why_not(run.inference, 'max_rate', 5.0)
        run.until(lambda: heard('frames per second') and run.values(part)['rate_most'] == '5')
        run.capture.trigger_deactivate()
        run.until(lambda: heard('no frame comes any more'))
        run.capture.trigger_activate()
        run.until(lambda: heard('frames per second'))
        assert not any('too slow' in each for each in said), said


def test_an_accelerator_that_refuses_frames_is_not_called_slow(free_domain: int) -> None:
    with fleet(free_domain) as run:
        run.accelerator.refuses = True
        comes_to = run.comes_to
        gives = 'only 0.0 of ', 'frames per second give results', ' fail', "part 'accelerator'"
        comes_to('inference: detections', ERROR, *gives)
        refused = 'the buffer was refused: EINVAL'
        lost = 'every frame is lost, ', refused, 'the error says what the device refused'
        comes_to('inference: accelerator', ERROR, *lost)
        none = 'in_process: the accelerator takes none of the frames: '
        comes_to('inference: link', ERROR, none + refused)
        assert 'too slow' not in run.text('inference: detections')
        run.accelerator.refuses = False
        run.well('inference: link', 'inference: detections', 'inference: accelerator')


def test_a_disk_that_is_full(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = recording._open_new

    def opened(path: Path) -> Any:
        return open('/dev/full', 'wb', buffering=0) if path.stem == 'full_0' else real(path)

    monkeypatch.setattr(recording, '_open_new', opened)
    with fleet(free_domain) as run:
        values = {'path': str(tmp_path / 'full'), 'disk_floor': 0}
        recorder = RecorderNode(context=run.context, parameter_overrides=overrides(values))
        run.group.add_node(recorder)
        try:
            recorder.start()
            full = 'No space left on device', 'make room on the disk, then start a new recording'
            run.comes_to('recorder: recording', ERROR, *full)
            recorder.trigger_deactivate()
            recorder.trigger_cleanup()
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


class Foreigner(Reader):
    """Another program: it publishes pictures in changing encodings, and reads diagnostics."""

    def __init__(self, domain: int) -> None:
        super().__init__(domain)
        self.encoding, self.pixel_bytes = '32FC1', 4
        self._stamp = Time(sec=1000)
        self._images = self.node.create_publisher(Image, 'image_raw', 2)
        self.node.create_subscription(Image, 'detections/image', lambda _: None, 2)
        self.node.create_timer(0.05, self._send)

    def _send(self) -> None:
        self._stamp.nanosec += 1
        image = Image(width=64, height=128, encoding=self.encoding, step=64 * self.pixel_bytes)
        image.header.stamp, image.data = self._stamp, bytes(image.step * image.height)
        self._images.publish(image)


def test_each_node_says_that_messages_cannot_be_converted_and_nobody_blames_the_camera(
    context: rclpy.Context, free_domain: int, tmp_path: Path
) -> None:
    with Foreigner(free_domain) as foreigner:
        nodes = [
            kind(context=context, parameter_overrides=overrides(values))
            for kind, values in (
                (InferenceNode, {'model': 'hog', 'timeout': 20.0}),
                (OverlayNode, {}),
                (RecorderNode, {'path': str(tmp_path / 'a'), 'disk_floor': 0}),
            )
        ]
        said = 'message(s) could not be converted lately'
        with spun(context, *nodes):
            for name in ('inference', 'overlay', 'recorder'):
                foreigner.comes_to(f'{name}: link', WARN, said)
            foreigner.comes_to('overlay: overlay', WARN, 'no picture: ', said)
            none = 'no frame could be converted lately', 'publish another encoding'
            foreigner.comes_to('inference: detections', ERROR, *none)
            foreigner.encoding, foreigner.pixel_bytes = 'rgb8', 3
            foreigner.comes_to('inference: detections', OK, 'frames per second')
            foreigner.comes_to('overlay: overlay', OK)


@pytest.mark.parametrize(
    ('owner', 'method'), [(FaultyAccelerator, 'load'), (InferenceNode, '_subscribe')]
)
def test_a_start_that_fails_behind_the_accelerator_leaves_it_closed(
    owner: Any, method: str, free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, method, Mock(side_effect=ConfigError('not so')))
    made = FaultyAccelerator(AcceleratorFaults())
    with (
        pytest.raises(ConfigError, match='not so'),
        alone(free_domain, InferenceNode, accelerator_factory=lambda: made),
    ):
        pass
    assert made.closed
