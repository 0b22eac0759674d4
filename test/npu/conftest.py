"""Fixtures of the accelerators' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from npu.scheduler_kit import Bench, MakeFrame, MakePool, ScriptedAccelerator

from zc_perception.npu import scheduler


@pytest.fixture
def start(make_pool: MakePool, make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    """Starts schedulers; every one must still be alive, and end, at the end."""
    monkeypatch.setattr(scheduler, '_IDLE_POLL_S', 0.01)
    benches: list[Bench] = []

    def make(accelerator: ScriptedAccelerator | None = None, **options: object) -> Bench:
        benches.append(Bench(make_pool(slots=12), make_frame, accelerator or ScriptedAccelerator(), **options))
        return benches[-1]

    yield make
    while benches:  # emptied, as pytest keeps the function above, and with it the queues, until the descriptors have been counted
        benches.pop().end()
