"""
The GStreamer camera against a real GStreamer.

Its sources are GStreamer's own, and one of ours with buffers made of memfds.
"""

from __future__ import annotations

from camera.gstreamer_process import build_plugin, check, gstreamer, names_of, Outcome, run_cases
import pytest

CASES = ('gstreamer_cases.py', 'gstreamer_colour_cases.py', 'gstreamer_crop_cases.py')


@pytest.fixture(scope='module')
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    plugins = tmp_path_factory.mktemp('plugins')
    build_plugin(gstreamer(), 'gst_frames.c', plugins)
    return run_cases(CASES, tmp_path_factory.mktemp('gstreamer'), plugins)


@pytest.mark.parametrize('name', names_of(*CASES))
def test_with_gstreamer(name: str, outcome: Outcome) -> None:
    check(name, outcome)
