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

"""Objects of the Voyager runtime against a double of its library: order and errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from npu.axruntime_kit import Double, model_file
import pytest

from zc_perception.errors import AcceleratorError
from zc_perception.npu.axruntime import library as axruntime_library
from zc_perception.npu.axruntime.kind import LATE_CALLS
from zc_perception.npu.axruntime.library import Argument, candidates
from zc_perception.npu.axruntime.runtime import (
    choose_device,
    Device,
    InstanceOptions,
    RuntimeSession,
)
from zc_perception.npu.axruntime.worker import RuntimeCalls

OPTIONS = InstanceOptions()


@pytest.fixture
def session(double: Double) -> Iterator[RuntimeSession]:
    session = RuntimeSession(double.path)
    yield session
    session.close()


COLONS, DASHES = ('metis-0:1:0', 'metis-1:3:0'), ('metis-0-1-0', 'metis-1-3-0')


def devices(*names: str) -> list[Device]:
    return [Device(name, 1, 'board', '', 1) for name in names]


@pytest.mark.parametrize('names', [COLONS, DASHES], ids=['colons', 'dashes'])
@pytest.mark.parametrize(
    ('wanted', 'index'),
    [('', 0), ('0001:03:00.0', 1), ('01:00.0', 0), ('metis-1-3-0', 1), ('/dev/metis-1:3:0', 1)],
)
def test_a_device_is_chosen_by_all_that_choose_a_card(
    names: tuple[str, ...], wanted: str, index: int
) -> None:
    assert choose_device(devices(*names), wanted).name == names[index]


def test_an_index_counts_in_the_order_of_the_addresses() -> None:
    """Addresses are hexadecimal, as in node names, and in any order in the library's list."""
    listed = devices('odd', 'metis-0:1a:0', 'metis-0:9:0', 'metis-0:1:0')
    wanted = ['', *'0123', '0000:1a:00.0']
    names = ['odd', 'metis-0:1:0', 'metis-0:9:0', 'metis-0:1a:0', 'odd', 'metis-0:1a:0']
    assert [choose_device(listed, each).name for each in wanted] == names
    assert choose_device(listed, 'odd').name == 'odd'


@pytest.mark.parametrize('wanted', ['2', '0002:03:00.0', '/dev/metis-0:9:0', '/', 'x' * 5000])
def test_what_names_no_device_is_answered_with_those_there_are(wanted: str) -> None:
    with pytest.raises(AcceleratorError) as caught:
        choose_device(devices(*COLONS), wanted)
    message = str(caught.value)
    assert message.startswith(
        f"could not find device '{wanted}', found metis-0:1:0, metis-1:3:0; set "
        'accelerator_device to one of them'
    )
    assert 'an index below 2, or leave it empty' in message


def test_no_device_names_the_tools(double: Double) -> None:
    double.devices = 0
    with pytest.raises(AcceleratorError, match=r"no Metis device.*'axdevice'.*accelerator: onnx"):
        RuntimeSession(double.path)


def test_a_library_of_something_else_is_refused() -> None:
    with pytest.raises(AcceleratorError, match=r'libc\.so\.6 is.*library: .*axr_create_context'):
        RuntimeSession('libc.so.6')


def test_the_library_is_looked_for_where_installers_put_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for release, folder in (('1.2.5-1', 'lib'), ('1.10.0-1', 'lib'), ('1.8.0-1', 'omega/lib')):
        path = tmp_path / f'runtime-{release}' / folder
        path.mkdir(parents=True)
        (path / 'libaxruntime.so').touch()
    places = (tmp_path / f'runtime-*/{place}/libaxruntime.so' for place in ('lib', 'omega/lib'))
    monkeypatch.setattr(axruntime_library, 'INSTALLED', tuple(map(str, places)))
    wheel = tmp_path / 'site-packages' / 'axelera' / 'lib'
    wheel.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / 'site-packages'))
    monkeypatch.setenv('AXELERA_RUNTIME_DIR', '/sdk')
    found = candidates()
    folders = ('', '/sdk/lib/', '/sdk/omega/lib/', f'{wheel}/')
    assert found[:4] == [f'{folder}libaxruntime.so' for folder in folders]
    releases = [re.findall(r'runtime-([\d.]+)', path)[0] for path in found[4:]]
    assert releases == ['1.10.0', '1.8.0', '1.2.5'], 'the newest first'
    assert candidates('/mine/libaxruntime.so') == ['/mine/libaxruntime.so']
    monkeypatch.delenv('AXELERA_RUNTIME_DIR')
    assert len(candidates()) == 5


def test_a_device_that_another_process_has_is_named_with_who_and_what_next(
    double: Double, session: RuntimeSession, tmp_path: Path
) -> None:
    double.foreign_sub_devices = 4
    with pytest.raises(AcceleratorError) as caught:
        session.open_model(model_file(tmp_path, 64, 64), 1)
    message = str(caught.value)
    words = (
        "device 'metis-0:1:0' can't be connected: 4 of 4 sub-devices are in use (DEVICE_IN_USE)"
    )
    for word in (words, 'exclusive to one process', "'fuser -v /dev/metis*'"):
        assert word in message
    assert message.endswith('use another device: metis-1:3:0')
    assert double.live_objects == 1, 'the model is gone again, the context stays'


def test_another_struct_layout_is_refused(
    double: Double, session: RuntimeSession, tmp_path: Path
) -> None:
    double.wrong_tensor_size = 8
    words = r'21128 bytes, but its shape has 21120: .*struct layout'
    with pytest.raises(AcceleratorError, match=words):
        session.open_model(model_file(tmp_path, 64, 64), 1)


def test_closing_twice_destroys_once(double: Double, tmp_path: Path) -> None:
    session = RuntimeSession(double.path)
    session.open_model(model_file(tmp_path, 96, 64), 1).connections[0].load_instance(OPTIONS)
    connection = session.open_model(model_file(tmp_path, 64, 64), 1).connections[0]
    assert (double.used_sub_devices()[0], double.live_objects) == (1, 3), (
        'all of the model before is destroyed'
    )
    for _ in range(2):
        connection.load_instance(OPTIONS)
    assert (double.instances, double.live_objects) == (3, 4), 'the instance before is destroyed'
    session.close()
    connection.close()
    session.close()
    with pytest.raises(ValueError, match='taken off the device'):
        connection.run((Argument * 1)(), (Argument * 6)())


# The queue of calls: which call returns which result, and when an input may be refilled.


class Slot:
    """An input or output slot: its content is its only argument."""

    def __init__(self, content: int | None) -> None:
        self.arguments = [content]
        self.users = 0


@dataclass
class Job:
    number: int
    wanted: bool = True


class LateDevice:
    """A runtime as documented, with late results: input of call n is output of call n + late."""

    def __init__(self, late: int) -> None:
        self._late = late
        self.inside: list[list[int]] = []
        self.fail = False

    def run(self, inputs: Any, outputs: Any) -> None:
        if self.fail:
            self.fail = False
            raise AcceleratorError('injected')
        self.inside.append(inputs)
        outputs[0] = self.inside.pop(0)[0] if len(self.inside) > self._late else None


@pytest.mark.parametrize('late', [0, LATE_CALLS])
@settings(max_examples=200)
@given(steps=st.lists(st.sampled_from(['frame', 'push', 'fail', 'give up']), max_size=60))
def test_every_result_is_its_own_frame_s(late: int, steps: list[str]) -> None:
    device = LateDevice(late)
    calls: Any = RuntimeCalls(device.run, late)
    slots = [Slot(-1) for _ in range(LATE_CALLS + 2)]
    number = finished = lost = 0
    waiting: list[Job] = []
    for step in steps:
        outputs = Slot(None)
        if step == 'give up':
            if waiting:
                waiting[0].wanted = False
            continue
        if step == 'push' and calls.last_input is None:
            continue
        job, slot = None, calls.last_input
        if step != 'push':
            # One slot more than jobs is enough: one is always free.
            slot = next(slot for slot in slots if slot.users == 0)
            slot.arguments[0], job = number, Job(number)
            number += 1
        if step == 'fail':
            device.fail = True
            with pytest.raises(AcceleratorError):
                calls.run(job, slot, outputs)
            lost += 1 + sum(call.job is not None for call in calls.clear())
            assert all(slot.users == 0 for slot in slots)
            device.inside.clear()  # another instance
            waiting.clear()
            continue
        if job is not None:
            waiting.append(job)
        done = calls.run(job, slot, outputs)
        if done is not None and done.job is not None:
            assert done.job is waiting.pop(0) and outputs.arguments[0] == done.job.number
            finished += 1
        assert calls.wanted == any(job.wanted for job in waiting)
        assert len(waiting) <= late
    assert finished + lost + len(waiting) == number
