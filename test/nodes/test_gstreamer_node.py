"""``gstreamer_node``, with GStreamer 1.22 and 1.26 in processes of their own."""

from __future__ import annotations

from pathlib import Path

from camera.gstreamer_process import check, names_of, Outcome, run_cases
import pytest

CASES = Path(__file__).with_name('gstreamer_node_cases.py')


@pytest.fixture(scope='module', params=['machine', '1.26'])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp('node')
    return run_cases([CASES], folder, newer=request.param == '1.26')


@pytest.mark.parametrize('name', names_of(CASES))
def test_in_a_process_with_gstreamer(name: str, outcome: Outcome) -> None:
    check(name, outcome)
