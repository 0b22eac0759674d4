"""The checks of the graph's figures: that each of them can fail. Needs no rig."""

from __future__ import annotations

from typing import Any

import pytest

from .graph import checks_of


def _good_run(variant: str) -> dict[str, Any]:
    """Figures of a run in which everything holds."""
    return {
        'variant': variant, 'frames': 60, 'camera_fps': 30.0, 'crc_equal': 60, 'distinct_contents': 60, 'boxes_equal': 60,
        'fences_good': 60, 'failed': 0, 'submitted_inodes': [5, 6], 'attached': {'5': ['0000:01:00.0'], '6': ['0000:01:00.0']},
        'exporters': ['system'], 'traced_import_inodes': [5, 6], 'traced_imports': 2 if variant == 'cached' else 64,
        'trial_imports': 0 if variant == 'cached' else 4,
        'traced_submits': 60, 'looks': 3, 'cpu_mappings': [], 'copies': {}, 'rung': 'in_process', 'conversions': 0,
        'received_by_plain_subscriber': 60, 'left_in_bufinfo': [], 'left_on_device': {'imports': 0},
    }  # fmt: skip


BROKEN = {
    'frames': {'frames': 59},
    'content': {'crc_equal': 59},
    'results': {'fences_good': 59},
    'I1': {'attached': {'5': ['0000:01:00.0'], '6': []}, 'traced_import_inodes': [5]},
    'I2': {'exporters': ['system', 'somebody']},
    'I3': {'traced_imports': 3},
    'I4': {'cpu_mappings': ['12: 7f00-7f01 rw-s 0 00:0c 5 /dmabuf:']},
    'link': {'conversions': 1},
    'subscriber': {'received_by_plain_subscriber': 10},
    'nothing_left': {'left_in_bufinfo': [5]},
}


@pytest.mark.parametrize('variant', ['cached', 'uncached'])
def test_a_good_run_passes(variant: str) -> None:
    checks = checks_of(_good_run(variant), 60)
    assert set(checks) == set(BROKEN) and all(check['holds'] for check in checks.values())


@pytest.mark.parametrize('variant', ['cached', 'uncached'])
@pytest.mark.parametrize('name', BROKEN)
def test_each_check_can_fail(name: str, variant: str) -> None:
    assert not checks_of({**_good_run(variant), **BROKEN[name]}, 60)[name]['holds']


def test_one_picture_again_and_again_proves_nothing() -> None:
    assert not checks_of({**_good_run('cached'), 'distinct_contents': 1}, 60)['content']['holds']


def test_a_frame_that_was_not_watched_proves_nothing() -> None:
    assert not checks_of({**_good_run('cached'), 'looks': 0}, 60)['I4']['holds']
    assert not checks_of({**_good_run('cached'), 'copies': {'tensor': 60}}, 60)['I4']['holds']
