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

"""A runtime that is late or never answers: the cost in frames and places, and the node's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import ctypes
from dataclasses import replace
import json
import os
from pathlib import Path
import re
import select
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any
import zipfile

from doubles.axelera_runtime import add_pipelines
from hypothesis import given, settings
from hypothesis import strategies as st
from npu.axruntime_kit import (
    blobs,
    Double,
    finished,
    model,
    model_file,
    number_in,
    Open,
    reference,
    start,
    tensor_spec,
    Voyager,
    WAIT_S,
)
from npu.scheduler_kit import Bench, MakeFrame
import numpy as np
import pytest
from waiting import until

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.detection.letterbox import Letterbox
from zc_perception.errors import AcceleratorError, ConfigError, DeviceLostError, ZcError
from zc_perception.jetson.nvbufsurface import NvBufSurfaceHeap
from zc_perception.jetson.vic import Vic
from zc_perception.memory.fence import EventFence, Fence, poll_fd
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger, LedgerEntry
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool
from zc_perception.npu import recovering_device
from zc_perception.npu.axruntime import library as axruntime_library
from zc_perception.npu.axruntime.accelerator import AxRuntimeAccelerator
from zc_perception.npu.axruntime.kind import LATE_CALLS
from zc_perception.npu.axruntime.library import Argument, candidates
from zc_perception.npu.axruntime.runtime import (
    choose_device,
    Device,
    InstanceOptions,
    RuntimeSession,
)
from zc_perception.npu.axruntime.tensors import OutputSlot
from zc_perception.npu.axruntime.worker import AxRuntimeJob, RuntimeCalls
from zc_perception.npu.manifest import load_manifest, ModelManifest
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

pytestmark = pytest.mark.usefixtures('no_fd_leak')


@pytest.mark.parametrize('double_buffer', [False, True], ids=['single', 'double'])
def test_a_late_run_costs_the_frames_in_flight_and_no_other(
    double_buffer: bool, voyager: Voyager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovering_device, 'HANG_TIMEOUTS', 10**6)
    device: Any = voyager.loaded(double_buffer=double_buffer)
    places, double, seen = device.capabilities().max_in_flight, voyager.double, list[int]()
    options = {'in_flight': places, 'timeout_s': 60.0, 'keep_all': True}
    bench = Bench(voyager.pool(24), voyager.make_frame, device, **options)
    bench.on_result = lambda entry: seen.append(number_in(entry.job.outputs()))
    running, double.hang_at = bench.scheduler, double.runs + 1
    try:
        for sequence in range(places):
            bench.queue.put(voyager.frame(sequence, bench.pool))
        until(double.is_hanging)
        # A job that is given up while its tensor is filled ends at once, which allows one more
        # frame in flight. With double buffering the third waits for a tensor.
        until(lambda: device._workers[0]._ready.qsize() == 1 and len(running._jobs) == places)
        for entry in tuple(running._jobs):
            entry.deadline_ns = 0
        for sequence in range(places, 20):
            bench.queue.put(voyager.frame(sequence, bench.pool))
        until(lambda: len(bench.lost) == places and running.in_flight == 0)
        time.sleep(0.2)
        assert len(bench.lost) == places and len(bench.queue) == 20 - places, 'the others wait'
        double.end_hang()
        until(lambda: len(bench.results) + len(bench.lost) == 20)
        assert bench.results == seen == [*range(places, 20)]
        assert running.statistics().refused_device == 0
    finally:
        double.end_hang()
        bench.stop()


@pytest.mark.parametrize('given_up', ['inside the call', 'after it'])
def test_a_result_inside_the_runtime_that_nobody_wants_gives_its_place_back(
    given_up: str, voyager: Voyager
) -> None:
    """With double buffering a result comes out two calls later, so without frames never."""
    flush_after_s = 0.3 if given_up == 'after it' else 0.05
    accelerator = voyager.loaded(double_buffer=True, flush_after_s=flush_after_s)
    frame, double = voyager.frame(1), voyager.double
    runs = double.runs
    double.hang_at = runs + 1 if given_up == 'inside the call' else 0
    job = start(accelerator, frame)
    until(double.is_hanging if double.hang_at else lambda: double.runs > runs)
    frame.release(job.abandon())
    double.end_hang()
    until(lambda: accelerator._workers[0].open_jobs == 0)


def test_a_job_that_ends_while_it_is_given_up_frees_its_place(make_frame: MakeFrame) -> None:
    """The worker has noted its end and is about to signal, when the owner closes the fence."""
    given_back: list[OutputSlot | None] = []
    frame = make_frame()
    job = AxRuntimeJob(frame, Letterbox.fit(64, 64, 64, 64), given_back.append)
    signal, fences = job.fence.signal, list[Fence]()

    def late(error: BaseException | None = None) -> None:
        job.fence.signal = signal  # type: ignore[method-assign]
        fences.append(job.abandon())
        signal(error)

    job.fence.signal = late  # type: ignore[method-assign]
    with OwnedFd(os.dup(job.fence.fileno())) as place:
        job.finish(None)
        assert poll_fd(place.fileno(), select.POLLIN, 0.0) and given_back == [None]
    frame.release(fences[0])


def test_a_model_that_does_not_go_off_the_card_does_not_hold_up_the_end(
    voyager: Voyager, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = voyager.loaded()
    session, returns = accelerator._session, threading.Event()
    close_model = session.close_model

    def hang() -> None:
        returns.wait()
        close_model()

    monkeypatch.setattr(session, 'close_model', hang)
    with pytest.warns(RuntimeWarning, match='stays in use until this process ends'):
        accelerator.close()
    returns.set()
    until(lambda: not any(voyager.double.used_sub_devices()))


# An ``.axm`` on the runtime's double: the same boxes as from ``model.json``.


@pytest.fixture
def runtime(binding: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, module in add_pipelines(binding).items():
        monkeypatch.setitem(sys.modules, name, module)
    return binding


def axm(folder: Path, **settings: float) -> ModelManifest:
    with zipfile.ZipFile(folder / 'blobs.axm', 'w') as archive:
        archive.writestr('settings.json', json.dumps({'height': 64, 'width': 64, **settings}))
    return replace(model(folder), file=folder / 'blobs.axm')


Find = Callable[..., Detections]


@pytest.fixture
def found(make_frame: MakeFrame) -> Find:
    def find(accelerator: AxRuntimeAccelerator, manifest: ModelManifest) -> Detections:
        with make_frame(width=128, height=96, fill=blobs) as frame:
            job = finished(accelerator, frame)
            limits = DecodeLimits(0.6, 0.5, 100)
            detections = make_head(manifest.head).decode(job.outputs(), job.letterbox, limits)
            job.close()
        return detections

    return find


def test_it_finds_what_model_json_of_the_same_numbers_finds(
    runtime: Any, open_axruntime: Open, found: Find, tmp_path: Path
) -> None:
    accelerator = open_axruntime()
    results = []
    for manifest in (model(tmp_path), axm(tmp_path), model(tmp_path), axm(tmp_path)):
        accelerator.load(manifest)
        results.append(found(accelerator, manifest))
    assert len(results[0].scores) == 2
    for result in results[1:]:
        assert np.array_equal(result.classes, results[0].classes)
        assert result.boxes == pytest.approx(results[0].boxes, abs=1e-4)
        assert result.scores == pytest.approx(results[0].scores, abs=1e-6)
    assert {thread.name for thread in accelerator.hot_threads()} == {'axruntime-axm'}
    assert runtime.double.used_sub_devices == 4
    accelerator.close()
    assert runtime.double.used_sub_devices == 0


def test_an_axm_takes_the_frames_of_one_core_whatever_the_parameters_say(
    runtime: Any, open_axruntime: Open, tmp_path: Path
) -> None:
    accelerator = open_axruntime(aipu_cores=4, double_buffer=True, in_flight=2)
    assert accelerator.capabilities().max_in_flight == 12
    accelerator.load(axm(tmp_path))
    assert accelerator.capabilities().max_in_flight == 2
    [notice] = accelerator.notices()
    assert notice == 'aipu_cores: 4 is for a model.json; an .axm runs on one core'


def test_the_folder_of_an_export_is_enough(
    runtime: Any, open_axruntime: Open, found: Find, tmp_path: Path
) -> None:
    folder = tmp_path / 'blobs_axelera_model'
    folder.mkdir()
    axm(tmp_path)
    (tmp_path / 'blobs.axm').rename(folder / 'blobs.axm')
    (folder / 'metadata.yaml').write_text(
        'task: detect\nstride: 32\nimgsz: [64, 64]\nnames: {0: red, 1: green, 2: '
        'blue}\nend2end: false\n'
    )
    manifest = load_manifest(str(folder))
    assert (manifest.engine, manifest.classes) == ('axruntime', ('red', 'green', 'blue'))
    accelerator = open_axruntime()
    accelerator.load(manifest)
    assert found(accelerator, manifest).classes.tolist() == [0, 1]


def test_a_failed_run_costs_its_frame_and_a_lost_card_is_called_lost(
    runtime: Any, open_axruntime: Open, found: Find, tmp_path: Path
) -> None:
    manifest = axm(tmp_path)
    accelerator = open_axruntime()
    accelerator.load(manifest)
    for error, kind in (('InternalError', AcceleratorError), ('ConnectionError', DeviceLostError)):
        double = runtime.double
        double.fail_from, double.fail_count, double.fail_with = double.runs + 1, 1, error
        with pytest.raises(kind, match=r'could not run the model: injected into run \d+'):
            found(accelerator, manifest)
        assert len(found(accelerator, manifest).scores) == 2


def test_what_does_not_fit_is_refused_with_the_next_step(
    runtime: Any, open_axruntime: Open, tmp_path: Path
) -> None:
    accelerator = open_axruntime()
    runtime.double.old_model = True
    with pytest.raises(ConfigError, match=r'an older SDK.* release of the runtime \(1\.9\.0\)'):
        accelerator.load(axm(tmp_path))
    runtime.double.old_model = False
    manifest = axm(tmp_path, width=32)
    with pytest.raises(ConfigError, match=r'expected float32 \(1, 3, 64, 32\)'):
        accelerator.load(manifest)
    (tmp_path / 'blobs.axm').write_bytes(b'not an archive')
    with pytest.raises(ZcError, match=r"blobs\.axm' can't be loaded: File is not a zip file"):
        accelerator.load(manifest)


def test_a_release_before_1_9_and_the_c_library_are_named(
    binding: Any, double: Double, open_axruntime: Open, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r'needs axelera\.runtime 1\.9.*installed is 1\.8.*axelera-rt==1\.9\.0'
    ):
        open_axruntime().load(axm(tmp_path))
    with pytest.raises(
        ConfigError, match=r'axelera\.runtime, which this node.*axruntime_library names'
    ):
        open_axruntime(axruntime_library=double.path).load(axm(tmp_path))


# On a Jetson the VIC scales the frames and the CPU only quantises.

DOUBLES = Path(__file__).resolve().parents[1] / 'doubles'


@pytest.fixture(scope='module')
def jetson(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp('jetson')
    paths = {}
    for name in ('nvbufsurface', 'nvbufsurftransform'):
        paths[name] = str(folder / f'lib{name}.so')
        subprocess.run(
            ['gcc', '-shared', '-fPIC', '-O2', '-o', paths[name], DOUBLES / f'{name}.c'],
            check=True,
        )
    return paths


def counter(library: str, name: str) -> ctypes.c_int:
    return ctypes.c_int.in_dll(ctypes.CDLL(library), name)


@pytest.fixture
def ledger() -> CopyLedger:
    return CopyLedger()


@pytest.fixture
def accelerator(
    double: Double, jetson: dict[str, str], ledger: CopyLedger, tmp_path: Path
) -> Iterator[AxRuntimeAccelerator]:
    """Yield one with a VIC and a model of 128 x 96."""
    vic = Vic(jetson['nvbufsurftransform'], jetson['nvbufsurface'])
    values = AxRuntimeAccelerator.own({'axruntime_library': double.path})
    accelerator = AxRuntimeAccelerator(ledger, values, tensor_heap=SealedMemfd(), vic=vic)
    accelerator.load(model(tmp_path, 128, 96))
    yield accelerator
    accelerator.close()
    assert counter(jetson['nvbufsurface'], 'double_mapped_planes').value == 0


@pytest.fixture
def pool(jetson: dict[str, str]) -> Iterator[BufferPool]:
    heap, wanted = NvBufSurfaceHeap(jetson['nvbufsurface']), compute_layout(NV12, 256, 144)
    (probe,), layout = heap.allocate_image(wanted, BT601_LIMITED)
    probe.close()
    allocate = lambda: heap.allocate_image(wanted, BT601_LIMITED)[0]  # noqa: E731
    pool = BufferPool(layout, allocate, 2, name='camera', release_timeout_s=WAIT_S)
    yield pool
    pool.close()


def test_the_vic_scales_and_the_cpu_quantises(
    accelerator: AxRuntimeAccelerator, pool: BufferPool, make_frame: MakeFrame,
    ledger: CopyLedger, jetson: dict[str, str],
) -> None:  # fmt: skip
    transforms = counter(jetson['nvbufsurftransform'], 'double_transforms')
    before = transforms.value
    for _ in range(3):
        frame = make_frame(pool, fill=blobs)
        job = finished(accelerator, frame)
        wanted = reference(frame, job.letterbox, tensor_spec(128, 96))
        for output, exact in list(zip(job.outputs(), wanted, strict=True))[1::2]:
            # The VIC's and OpenCV's scaling differ by a step or two of a sample at edges.
            assert np.abs(output.real() - np.clip(exact.values, -9, 10)).mean() < 0.2
            assert (output.real() > 0).sum() == (exact.values > 0).sum() > 0
        job.close()
        frame.release()
    assert transforms.value - before == 3
    # The picture within the letterbox is 128 x 72 RGBA; the frame's own planes are not touched.
    assert ledger.entries() == {'tensor': LedgerEntry(3, 3 * 128 * 72 * 4)}
    assert (accelerator.facts()['vic_frames'], list(accelerator.notices())) == (3, [])


def test_a_vic_that_refuses_is_replaced_by_the_cpu_and_said(
    accelerator: AxRuntimeAccelerator, pool: BufferPool, make_frame: MakeFrame,
    ledger: CopyLedger, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv('TRANSFORM_DOUBLE', '-2')
    for count in (1, 2):
        frame = make_frame(pool, fill=blobs)
        job = finished(accelerator, frame)
        assert (job.outputs()[1].values > job.outputs()[1].zero_point).any()
        assert ledger.entries() == {'tensor': LedgerEntry(count, count * 256 * 144 * 3 // 2)}
        job.close()
        frame.release()
    (notice,) = accelerator.notices()
    assert notice.startswith(
        "the CPU scales the frames, because the VIC can't: the VIC could not make AB24 128x72 "
        'from NV12 256x144'
    )


def test_the_vic_waits_for_the_camera(
    accelerator: AxRuntimeAccelerator, pool: BufferPool, make_frame: MakeFrame
) -> None:
    fence = EventFence()
    fence.signal(RuntimeError('the ISP dropped it'))
    frame = make_frame(pool, acquire_fence=fence)
    job = finished(accelerator, frame)
    with pytest.raises(AcceleratorError, match='the ISP dropped it'):
        job.outputs()
    assert accelerator.facts()['vic_frames'] == 0 and not accelerator.notices()
    job.close()
    frame.release()
    fence.close()


# Objects of the Voyager runtime against a double of its library: order and errors.

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
        "accelerator_device to a found device's name"
    )
    assert 'an index below 2, or leave accelerator_device empty' in message


def test_no_device_names_the_tools_and_a_library_of_something_else_is_refused(
    double: Double,
) -> None:
    double.devices = 0
    with pytest.raises(AcceleratorError, match=r"no Metis device.*'axdevice'.*accelerator: onnx"):
        RuntimeSession(double.path)
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


def slot_of(content: int | None) -> SimpleNamespace:
    """Return an input or output slot, whose content is its only argument."""
    return SimpleNamespace(arguments=[content], users=0)


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
    slots = [slot_of(-1) for _ in range(LATE_CALLS + 2)]
    number = finished = lost = 0
    waiting: list[SimpleNamespace] = []
    for step in steps:
        outputs = slot_of(None)
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
            slot.arguments[0], job = number, SimpleNamespace(number=number, wanted=True)
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
