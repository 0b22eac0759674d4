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

"""Fixtures of the accelerators' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, ExitStack
import gc
from pathlib import Path
import sys
from types import ModuleType
from typing import Any

from doubles.axelera_runtime import make_module
from npu.axruntime_kit import build_double, Double, Open, Voyager, WAIT_S
from npu.card_kit import counting_accelerator, Host, Opened
from npu.scheduler_kit import Bench, LONG_S, MakeFrame, MakePool, QUICK_S, ScriptedAccelerator
import pytest
from waiting import until

from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu import recovering_device, scheduler
from zc_perception.npu.axruntime.accelerator import AxRuntimeAccelerator
from zc_perception.npu.manifest import load_manifest
from zc_perception.npu.onnx.accelerator import OnnxAccelerator


@pytest.fixture
def start(
    make_pool: MakePool, make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Bench]]:
    """Start schedulers; at the end each must still run, and then stop."""
    monkeypatch.setattr(scheduler, '_IDLE_POLL_S', 0.01)
    # On a busy machine the thread may need longer than stop() waits for it.
    monkeypatch.setattr(scheduler, '_LONGEST_STOP_S', LONG_S)
    monkeypatch.setattr(recovering_device, 'FIRST_DELAY_S', QUICK_S)
    benches: list[Bench] = []

    def make(accelerator: ScriptedAccelerator | None = None, **options: object) -> Bench:
        benches.append(
            Bench(make_pool(slots=12), make_frame, accelerator or ScriptedAccelerator(), **options)
        )
        return benches[-1]

    yield make
    # pytest keeps the function above, and so the queues: empty the list before descriptors are
    # counted
    while benches:
        benches.pop().end()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def make_opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Opened]]:
    with ExitStack() as made:

        def make(**options: Any) -> Opened:
            accelerator, card = counting_accelerator(monkeypatch, **options)
            made.enter_context(closing(accelerator))
            return accelerator, card

        yield make


@pytest.fixture
def opened(make_opened: Callable[..., Opened]) -> Opened:
    return make_opened()


@pytest.fixture
def open_axruntime() -> Iterator[Open]:
    """Open axruntime accelerators; request :func:`double` or :func:`binding` first."""
    with ExitStack() as opened:

        def make(ledger: CopyLedger | None = None, **options: Any) -> AxRuntimeAccelerator:
            names = {'flush_after_s', 'tensor_heap'} & options.keys()
            parts = {'tensor_heap': SealedMemfd(), **{name: options.pop(name) for name in names}}
            wanted = AxRuntimeAccelerator.own({'timeout': WAIT_S, **options})
            accelerator = AxRuntimeAccelerator(ledger or CopyLedger(), wanted, **parts)
            return opened.enter_context(closing(accelerator))

        yield make


@pytest.fixture(scope='session')
def warm_engines() -> None:
    """Make ONNX Runtime open the descriptors that it keeps."""
    accelerator = OnnxAccelerator(CopyLedger(), {'threads': 1})
    accelerator.load(load_manifest('road'))
    accelerator.close()


@pytest.fixture(scope='session')
def built(tmp_path_factory: pytest.TempPathFactory) -> Double:
    return Double(build_double(tmp_path_factory.mktemp('axruntime') / 'libaxruntime.so'))


@pytest.fixture
def double(built: Double) -> Iterator[Double]:
    """Yield the double; at the end its objects must be destroyed, and none misused."""
    built.reset()
    yield built
    assert (built.misuses, built.first_misuse()) == (0, '')

    def left() -> tuple[int, list[int]]:
        return built.live_objects, built.used_sub_devices()

    # A call that timed out destroys its objects when it returns.
    until(lambda: left() == (0, [0, 0, 0, 0]), left)


@pytest.fixture
def voyager(
    double: Double,
    open_axruntime: Open,
    make_pool: MakePool,
    make_frame: MakeFrame,
    tmp_path: Path,
) -> Iterator[Voyager]:
    yield Voyager(double, open_axruntime, make_pool, make_frame, tmp_path)
    double.end_hang()


@pytest.fixture
def binding(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a double of the vendor's Python package; its objects must be gone at the end."""
    module = make_module()
    monkeypatch.setitem(sys.modules, 'axelera', ModuleType('axelera'))
    monkeypatch.setitem(sys.modules, 'axelera.runtime', module)
    yield module
    double = module.double

    def left() -> tuple[int, int, int]:
        gc.collect()
        return double.live, double.contexts, double.used_sub_devices

    until(lambda: left() == (0, 0, 0), left)
    assert double.misuses == []
