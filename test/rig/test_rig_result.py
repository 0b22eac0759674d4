"""The checks of the graph's figures: that each of them can fail, and what ``result.json`` then says. Needs no rig."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .graph import DOCUMENT_KEYS, GraphRuns, check_names, checks_of, result_of
from .guest.graph_variants import RUNS, VARIANTS
from .machine import RigResult

WANTED = 60


def _good_verdict() -> dict[str, Any]:
    """``zc_verify``'s result where everything holds."""
    checks = {name: {'holds': True, 'measured': True, 'source': 'test'} for name in ('I1', 'I2', 'I3', 'I4')}
    return {
        'exit': 0, 'pass': True, 'frames': 60, 'checks': checks, **dict.fromkeys(DOCUMENT_KEYS, True), 'pass_document': True,
        'detail': {'imports': 60, 'fence_wait_lines': 20, 'fence_waits_by_poll': 40, 'exporters': ['system']},
        'files': {'timeline': 'timeline.json'},
    }  # fmt: skip


def _good_run(name: str) -> dict[str, Any]:
    """Figures of a run in which everything holds."""
    variant = VARIANTS[name]
    inodes = [5, 6] if variant.buffers == 1 else [5, 6, 7, 8]
    return {
        'variant': name, 'frames': 60, 'processed': 60, 'camera_fps': 30.0, 'crc_equal': 60, 'distinct_contents': 60, 'boxes_equal': 60,
        'fences_good': 60, 'failed': 0, 'submitted_inodes': inodes,
        'pool_inodes': [*inodes, 9], 'attached': {str(inode): ['0000:01:00.0'] for inode in inodes},
        'buffers': [variant.buffers], 'strides': [list(variant.strides)], 'rows': [list(variant.rows)],
        'exporters': ['system'], 'traced_import_inodes': inodes, 'traced_imports': len(inodes) if variant.cached else 64,
        'trial_imports': 0 if variant.cached else 4,
        'traced_submits': 60, 'looks': 3, 'cpu_mappings': [], 'copies': {}, 'rung': 'in_process', 'conversions': 0,
        'received_by_plain_subscriber': 60, 'left_in_bufinfo': [], 'left_on_device': {'imports': 0}, 'verify': _good_verdict(),
    }  # fmt: skip


BROKEN: dict[str, dict[str, Any]] = {
    'frames': {'frames': 59},
    'layout': {'strides': [[641, 641]]},
    'content': {'crc_equal': 59},
    'results': {'fences_good': 59},
    'I1': {'attached': {'5': ['0000:01:00.0'], '6': []}, 'traced_import_inodes': [5]},
    'I2': {'exporters': ['system', 'somebody']},
    'I3': {'traced_imports': 3},
    'I4': {'cpu_mappings': ['12: 7f00-7f01 rw-s 0 00:0c 5 /dmabuf:']},
    'link': {'conversions': 1},
    'subscriber': {'received_by_plain_subscriber': 10},
    'nothing_left': {'left_in_bufinfo': [5]},
    'verify': {'verify': {}},
}


@pytest.mark.parametrize('variant', VARIANTS)
def test_a_good_run_passes(variant: str) -> None:
    checks = checks_of(_good_run(variant), WANTED)
    assert list(checks) == check_names(variant) and all(check['holds'] for check in checks.values())


def test_every_check_is_of_some_run() -> None:
    assert set(BROKEN) == {name for variant in VARIANTS for name in check_names(variant)}


@pytest.mark.parametrize(('variant', 'name'), [(variant, name) for variant in VARIANTS for name in check_names(variant)])
def test_each_check_can_fail(name: str, variant: str) -> None:
    assert not checks_of({**_good_run(variant), **BROKEN[name]}, WANTED)[name]['holds']


def test_one_picture_again_and_again_proves_nothing() -> None:
    assert not checks_of({**_good_run('cached'), 'distinct_contents': 1}, WANTED)['content']['holds']


@pytest.mark.parametrize(
    'imports',
    [
        {'traced_imports': 3},
        {'traced_imports': 3, 'traced_import_inodes': [5, 6, 77]},
        {'traced_imports': 1, 'traced_import_inodes': [5]},
        {'submitted_inodes': []},
    ],
    ids=['one twice', 'a stranger', 'one less', 'no frame'],
)
def test_with_the_cache_each_buffer_of_the_pool_is_imported_once_and_nothing_else(imports: dict[str, Any]) -> None:
    assert not checks_of({**_good_run('cached'), **imports}, WANTED)['I3']['holds']
    spare = {'traced_imports': 3, 'traced_import_inodes': [5, 6, 9]}
    assert checks_of({**_good_run('cached'), **spare}, WANTED)['I3']['holds']


def test_a_frame_whose_pixels_were_not_compared_proves_nothing() -> None:
    assert not checks_of({**_good_run('two_buffers'), 'processed': 61}, WANTED)['content']['holds']


def test_a_frame_that_was_not_watched_proves_nothing() -> None:
    assert not checks_of({**_good_run('cached'), 'looks': 0}, WANTED)['I4']['holds']
    assert not checks_of({**_good_run('cached'), 'copies': {'tensor': 60}}, WANTED)['I4']['holds']


@pytest.mark.parametrize('variant', RUNS)
@pytest.mark.parametrize(
    'fault',
    [
        {'exit': 1},
        {'exit': 3},
        {'pass': None},
        {'frames': 59},
        {'frames': None},
        {'checks': {}},
        {'detail': {**_good_verdict()['detail'], 'fence_waits_by_poll': 39}},
        {'detail': {**_good_verdict()['detail'], 'exporters': []}},
        {'files': {}},
        *({'checks': {**_good_verdict()['checks'], name: {'holds': True, 'measured': False}}} for name in ('I1', 'I2', 'I3', 'I4')),
        *({'checks': {**_good_verdict()['checks'], name: {'holds': None, 'measured': True}}} for name in ('I1', 'I2', 'I3', 'I4')),
    ],
    ids=str,
)
def test_a_verdict_counts_only_if_all_was_measured_and_holds(fault: dict[str, Any], variant: str) -> None:
    run = {**_good_run(variant), 'verify': {**_good_verdict(), **fault}}
    assert not checks_of(run, WANTED)['verify']['holds']


@pytest.mark.parametrize('key', [*DOCUMENT_KEYS, 'pass_document'])
def test_the_document_s_own_keys_count_in_the_document_s_run(key: str) -> None:
    run = {**_good_run('document'), 'verify': {**_good_verdict(), key: False}}
    assert not checks_of(run, WANTED)['verify']['holds']
    assert checks_of({**run, 'variant': 'uncached'} | {'strides': [[640, 640]], 'rows': [[360, 180]]}, WANTED)['verify']['holds']


def _result(runs: dict[str, dict[str, Any]], rc: int = 0) -> dict[str, Any]:
    boot = RigResult(rc, '', '', '', '', Path('nowhere'), 12.34, 3.2)
    return result_of(GraphRuns(boot, runs), '6.12.0', dict.fromkeys(RUNS, WANTED))


def test_the_result_names_which_run_says_what() -> None:
    runs = {name: _good_run(name) for name in RUNS}
    runs['document']['verify']['detail']['imports'] = 77
    runs['cached']['verify']['checks']['I3']['imports'] = 0
    result = _result(runs)
    assert result['pass'] is True and result['pass_document'] is True and result['of_run'] == {'checks': 'cached', 'document': 'document'}
    assert result['checks']['I3']['imports'] == 0 and set(result['checks']) == {'I1', 'I2', 'I3', 'I4'}
    assert result['detail']['imports'] == 77 and all(result[key] is True for key in DOCUMENT_KEYS)
    assert [result['runs'][name]['verify']['pass'] for name in RUNS] == [True] * 3 and 'verify' not in result['runs']['cached']['figures']
    assert (result['kernel'], result['wall_s'], result['kernel_complaints']) == ('6.12.0', 12.3, [])


@pytest.mark.parametrize('name', RUNS)
def test_a_run_that_is_missing_or_false_fails_the_whole(name: str) -> None:
    runs = {name: _good_run(name) for name in RUNS}
    assert not _result({other: run for other, run in runs.items() if other != name})['pass']
    assert not _result({**runs, name: {**runs[name], 'crc_equal': 59}})['pass']
    assert not _result({**runs, name: {**runs[name], 'verify': {}}})['pass']


def test_a_boot_that_failed_fails_the_whole() -> None:
    assert _result({name: _good_run(name) for name in RUNS})['pass']
    assert not _result({name: _good_run(name) for name in RUNS}, rc=126)['pass']
