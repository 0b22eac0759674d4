"""What publishers of frames do about their buffers: what is said of them."""

from __future__ import annotations

import pytest

from zc_perception.link.endpoints import frame_offer
from zc_perception.link.endpoints.frame_offer import Report


def test_a_sentence_is_said_once_a_minute_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], []
    monkeypatch.setattr(frame_offer.time, 'monotonic', lambda: now[0])
    report = Report(said.append)
    for _ in range(5):
        report('refused')
    report('connected')
    assert said == ['refused', 'connected']
    now[0] = 61.0
    report('refused')
    assert said[2:] == ['refused']
    for number in range(500):
        report(f'consumer {number}')
    assert len(report._said) <= 64
