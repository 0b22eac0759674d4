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
Real nodes with a camera and an accelerator that fail on command.

Another program reads ``/diagnostics``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
import threading
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from nodes.ros_kit import Onlooker, overrides, ros, spun
import rclpy

from zc_perception.camera.clock import StampClock
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, CameraLostError, DeviceLostError
from zc_perception.frame import Frame
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.process import NodeGroup
from zc_perception.npu.accelerator import Capabilities, ImportHandle
from zc_perception.npu.axl.kind import Axl
from zc_perception.npu.engine_thread import Engine
from zc_perception.npu.manifest import ModelManifest
from zc_perception.npu.onnx.accelerator import OnnxAccelerator

SIZE = (64, 128)
FRAMERATE = 30.0


class CameraFaults:
    """The camera's present faults, and a factory of cameras with them."""

    def __init__(self) -> None:
        self.mode = ''
        self.silent = threading.Event()
        self.stamps = StampClock(time.time_ns)

    def __call__(self, identity: str) -> FaultyCamera:
        if self.mode == 'unplugged':
            raise CameraLostError("camera '/dev/video0' can't be opened: No such device")
        return FaultyCamera(self)


class FaultyCamera(SyntheticCamera):
    identity = 'usb-1.2 serial 7'  # type: ignore[assignment]

    def __init__(self, faults: CameraFaults) -> None:
        super().__init__(
            *SIZE,
            FRAMERATE,
            'lens',
            seed=1,
            pattern='bars',
            heap=SealedMemfd(),
            now_ns=time.time_ns,
            ledger=CopyLedger(),
            clock=faults.stamps,
        )
        self._faults = faults

    def capture(self) -> Frame | None:
        if self._faults.mode == 'unplugged':
            raise CameraLostError('unplugged: ENODEV')
        if self._faults.mode == 'silent':
            self._faults.silent.set()
            self._stop.wait(0.05)
            return None
        return super().capture()

    def render(self, sequence: int, luma: Any, chroma: Any) -> bool:
        if self._faults.mode == 'bad':
            self._bad += 1
            return False
        return super().render(sequence, luma, chroma)


class _Blank(Engine):
    """An engine that finds nothing and takes ``job_s``."""

    def __init__(self, real: Any, faults: AcceleratorFaults) -> None:
        self._real, self._faults = real, faults

    def run(self, luma: Any, chroma: Any, colorimetry: Any) -> list[RawTensor]:
        self._faults.waiting.wait(self._faults.job_s)
        import numpy as np

        return [RawTensor(np.zeros((0, 6), np.float32))]

    def geometry(self, width: int, height: int) -> Any:
        return self._real.geometry(width, height)

    def close(self) -> None:
        self._real.close()


class AcceleratorFaults:
    """The accelerator's present faults, and a factory of accelerators with them."""

    def __init__(self) -> None:
        self.present = True
        self.job_s = 0.0
        self.refused = 0
        """Of ten frames."""
        self.waiting = threading.Event()

    def __call__(self) -> FaultyAccelerator:
        if not self.present:
            raise AcceleratorError('no card: check lspci')
        return FaultyAccelerator(self)


class FaultyAccelerator(OnnxAccelerator):
    PARAMETERS = Axl.PARAMETERS
    keeps_imports = True

    def __init__(self, faults: AcceleratorFaults) -> None:
        super().__init__(CopyLedger(), {'threads': 1})
        self._faults = faults
        self._asked = 0
        self.closed = False

    def load(self, manifest: ModelManifest) -> None:
        super().load(manifest)
        self._thread.engine = _Blank(self._thread.engine, self._faults)

    def capabilities(self) -> Capabilities:
        return Capabilities('onnx', 'a double', copy_free=True, max_in_flight=2, may_hang=False)

    def import_frame(self, frame: Frame) -> ImportHandle:
        if not self._faults.present:
            raise DeviceLostError('the card was removed')
        self._asked += 1
        if self._asked % 10 < self._faults.refused:
            raise AcceleratorError('the buffer was refused: EINVAL')
        return super().import_frame(frame)

    def tune(self, values: Mapping[str, Any]) -> None:
        self.keeps_imports = values['import_cache']

    def close(self) -> None:
        self.closed = True
        super().close()


class Reader(Onlooker):
    """Another program, which stores the last status of each name."""

    def __init__(self, domain: int, name: str = 'diagnostics_reader') -> None:
        super().__init__(domain, name)
        self.last: dict[str, DiagnosticStatus] = {}
        self.node.create_subscription(DiagnosticArray, '/diagnostics', self._on_array, 100)

    def _on_array(self, message: DiagnosticArray) -> None:
        for status in message.status:
            self.last[status.name] = status

    def level(self, name: str) -> int | None:
        level = self.last[name].level if name in self.last else None
        return level[0] if isinstance(level, bytes) else level

    def text(self, name: str) -> str:
        return str(self.last[name].message) if name in self.last else ''

    def values(self, name: str) -> dict[str, str]:
        values = self.last[name].values if name in self.last else ()
        return {value.key: value.value for value in values}

    def messages(self) -> dict[str, str]:
        return {name: status.message for name, status in list(self.last.items())}

    def comes_to(self, name: str, level: int, *words: str) -> None:
        """Wait until *name* has this level, and a text with all *words*."""
        self.until(
            lambda: self.level(name) == level and all(word in self.text(name) for word in words),
            lambda: f'{name} at {level} with {words}: {self.messages()}',
        )


class Fleet:
    """Running capture and inference nodes, and the faults of their devices."""

    def __init__(
        self,
        context: rclpy.Context,
        reader: Reader,
        capture: dict[str, Any],
        inference: dict[str, Any],
    ) -> None:
        self.camera, self.accelerator = CameraFaults(), AcceleratorFaults()
        self.context, self.reader = context, reader
        self.group: NodeGroup | None = None
        self.capture = CaptureNode(
            camera_factory=self.camera, context=context, parameter_overrides=overrides(capture)
        )
        values = {'model': 'hog', 'timeout': 20.0, **inference}
        self.inference = InferenceNode(
            accelerator_factory=self.accelerator,
            context=context,
            parameter_overrides=overrides(values),
        )

    def until(self, condition: Callable[[], bool], what: str) -> None:
        self.reader.until(condition, lambda: f'{what}: {self.reader.messages()}')

    def well(self, name: str) -> None:
        self.until(lambda: self.reader.level(name) == 0, f'{name} is well')


@contextmanager
def fleet(
    domain: int, *, capture: dict[str, Any] | None = None, inference: dict[str, Any] | None = None
) -> Iterator[Fleet]:
    """Yield running nodes whose diagnostics are all OK."""
    with ros(domain) as context, Reader(domain) as reader:
        made = Fleet(context, reader, capture or {}, inference or {})
        try:
            with spun(context, made.capture, made.inference) as made.group:
                for part in (
                    'capture: camera',
                    'capture: pool',
                    'capture: link',
                    'inference: accelerator',
                    'inference: detections',
                ):
                    made.well(part)
                made.until(lambda: made.inference.processed > 15, 'detections')
                yield made
        finally:
            made.accelerator.waiting.set()
