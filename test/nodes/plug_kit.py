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

"""A camera with controls that can be unplugged, changed and plugged in, and a capture node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
import time
from typing import Any

from nodes.managed import Managed, managed, status

from zc_perception.camera.camera import checked_value, ControlInfo, no_such_control
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.errors import CameraError, CameraLostError
from zc_perception.frame import Frame
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.observe.diagnostics import Level, Status

CONTROLS = {
    'brightness': ControlInfo('brightness', 'integer', 0, 255, 5, 128, 130, title='Brightness'),
    'horizontal_flip': ControlInfo('horizontal_flip', 'boolean', 0, 1, 1, 0, 0),
    'power_line_frequency': ControlInfo(
        'power_line_frequency', 'menu', 0, 2, 1, 1, 1, {0: 'Disabled', 1: '50 Hz', 2: '60 Hz'}
    ),
    'gain': ControlInfo('gain', 'integer', 0, 10, 1, 0, 7, read_only=True),
    'focus_absolute': ControlInfo('focus_absolute', 'integer', 0, 250, 1, 0, 10),
    'focus_automatic': ControlInfo('focus_automatic', 'boolean', 0, 1, 1, 1, 1),
}


class Plug:
    """A camera's connector: the plugged camera, and the driver's next events."""

    def __init__(self, *sizes: tuple[int, int]) -> None:
        self.sizes = list(sizes) or [(128, 96)]
        self.present = True
        self.opened: list[PluggedCamera] = []
        self.identity = 'serial 7'
        self.controls = dict(CONTROLS)
        self.says_inactive = True
        self.before_setting: Callable[[], None] = lambda: None

    def __call__(self, identity: str) -> PluggedCamera:
        if not self.present:
            raise CameraLostError(
                "camera '/dev/video0' can't be opened: No such device; plug it in"
            )
        size = self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0]
        self.opened.append(PluggedCamera(self, *size))
        return self.opened[-1]

    def pull(self) -> None:
        self.present = False
        self.opened[-1].error = CameraLostError('unplugged: ENODEV')

    def value(self, name: str) -> int | None:
        return self.controls[name].value


class PluggedCamera(SyntheticCamera):
    """Controls as in uvcvideo since Linux 5.15: setting an inactive one fails with EACCES."""

    def __init__(self, plug: Plug, width: int, height: int) -> None:
        super().__init__(
            width,
            height,
            60.0,
            'lens',
            seed=1,
            heap=SealedMemfd(),
            now_ns=time.time_ns,
            ledger=CopyLedger(),
        )
        self._plug = plug
        self.error: Exception | None = None

    @property
    def identity(self) -> str:
        return self._plug.identity

    @property
    def has_lens(self) -> bool:
        return True

    def capture(self) -> Frame | None:
        if self.error is not None:
            raise self.error
        return super().capture()

    def controls(self) -> Mapping[str, ControlInfo]:
        controls = self._plug.controls
        automatic = self._plug.says_inactive and bool(controls['focus_automatic'].value)
        return {
            **controls,
            'focus_absolute': replace(controls['focus_absolute'], inactive=automatic),
        }

    def set_control(self, name: str, value: Any) -> int | None:
        self._plug.before_setting()
        if name == 'focus_absolute' and self._plug.value('focus_automatic'):
            raise CameraError(
                "control 'focus_absolute' could not be set: another control overrides it"
            )
        info = self._plug.controls.get(name)
        if info is None:
            raise no_such_control(self.device, name, self._plug.controls)
        number = checked_value(self.device, info, value)
        number -= number % info.step
        self._plug.controls[name] = replace(info, value=number)
        return number


class Bench:
    """A spun capture node on a plug, *more* nodes (kind, parameters), and another program."""

    def __init__(
        self, run: Managed, plug: Plug, *more: tuple[Any, dict[str, Any]], **values: Any
    ) -> None:
        self.node = run.make(
            CaptureNode,
            {name.replace('__', '.'): value for name, value in values.items()},
            camera_factory=plug,
        )
        self.others = [run.make(*each) for each in more]
        self._plug = plug
        self.user, self.call, self.eventually = run.manager, run.call, run.eventually

    def status(self, part: str) -> Status:
        found: Status = status(self.node, part)
        return found

    @contextmanager
    def unplugged(self) -> Iterator[None]:
        """Unplug the camera for this block, and plug it in again."""
        self.eventually(lambda: self.status('camera').level is Level.OK)
        self._plug.pull()
        self.eventually(lambda: self.status('camera').level is Level.ERROR)
        opened = len(self._plug.opened)
        yield
        self._plug.present = True
        self.eventually(
            lambda: len(self._plug.opened) > opened and self.status('camera').level is Level.OK
        )


@contextmanager
def running(
    domain: int, plug: Plug, *more: tuple[Any, dict[str, Any]], **values: Any
) -> Iterator[Bench]:
    with managed(domain) as run:
        bench = Bench(run, plug, *more, **values)
        for node in (*bench.others, bench.node):
            node.start()
        yield bench


HOG = InferenceNode, {'model': 'hog', 'timeout': 20.0}
