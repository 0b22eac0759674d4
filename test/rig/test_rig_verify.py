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

"""
``zc_verify`` on a real kernel: each invariant can fail.

Graphs are sabotaged while they run; programs are attached and started.

One boot runs ``guest/verify_run.py``; what ``zc_verify`` must find of each case stands in the
table here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import json
import sys
from typing import Any

from link.unixfd.unixfd_kit import gst
from long_form import LONG
import pytest

from . import Rig
from .checked_boot import Boot, boot_script, compile_for_guest, gstreamer_for_guest, GUEST
from .graph import ENVIRONMENT, INVARIANTS
from .guest.graph_variants import MEMORY_MIB, VIVID
from .guest.verifier import AFTERWARDS, FRAMES, NOTHING_AGAIN

pytestmark = pytest.mark.rig

#  What is done to a running graph, and exactly the checks that must then be false; all others must
#  be measured, and true.
SABOTAGES: dict[str, set[str]] = {
    'nothing': set(),
    'maps': {'I4'},
    'maps_without_a_main_thread': {'I4'},
    'maps_by_another_name': {'I4'},
    'copies_with_numpy': {'I4'},
    # No copy is larger than a row: only the mapping gives it away.
    'copies_row_by_row': {'I4'},
    # Every frame's buffer is imported and attached, as it should be, and the device reads
    # something else.
    'submits_an_old_decoy': {'I3'},
    # Every handle stands for one frame's buffer, always: for another one's.
    'exchanges_handles': {'I3'},
    'without_a_cache': set(),
    # Every frame has an import of its own, and one more that serves nothing.
    'imports_twice': {'I3'},
    # Every frame has an import of its own, for ever.
    'keeps_imports': {'I3'},
    # No event of the driver tells of offsets, and I3 says so.
    'imports_at_a_wrong_offset': set(),
    'second_node': set(),
    'imports_decoys_alone': {'I1', 'I3'},
}
#: Graphs of their own.
GRAPHS: dict[str, set[str]] = {
    'known_exporter': set(),
    'unknown_exporter': {'I2'},
    'udmabuf': set(),
    'plain_link': {'I4'},
    'gstreamer_dmabuf': set(),
    'gstreamer_copy': {'I4'},
    'unixfd': set(),
    'two_processes': set(),
    'two_processes_started': set(),
}
CASES = {**SABOTAGES, **GRAPHS}
#  What nobody can know: I4 must not be true, and says these words. All other checks are measured,
#  and true.
UNKNOWN = {
    # Of a mapping that is gone before the last look nobody knows whether it lasted into the
    # window.
    'maps_before_the_window': 'frames were mapped',
    # Which pages are in a pipe, no file tells.
    'holds_pages_in_a_pipe': 'has a pipe with 65536 bytes in it',
    'without_the_cameras_log': 'the copy ledger of the capture node was not read',
    # All frames lie in one memfd, through which the camera writes them; no event tells of that.
    'writes_through_a_memfd': (
        "udmabuf's frames may be read through memory that they may be made of"
    ),
    # The pipeline's node does not name its device, and any video device may be it.
    'maps_a_pipelines_camera': 'is a video device, and perhaps the camera',
}
#  What each change runs: each invariant is false once, and the graph is true without the sabotage.
#  The long form runs all.
SHORT = {'nothing', 'maps', 'imports_decoys_alone', 'unknown_exporter', 'nobody'}
RUN = [name for name in (*CASES, *UNKNOWN, *NOTHING_AGAIN) if LONG or name in SHORT]


def _params(names: Iterable[str]) -> list[Any]:
    """Test parameters, of which those that the short form leaves out are marked."""
    return [
        pytest.param(name, marks=[] if name in SHORT else [pytest.mark.long]) for name in names
    ]


#  What gives each away, by figures of the checks that are false: there (more than 0), or absent.
#  The ledger is the nodes' own word, and never all that there is.
EVIDENCE: dict[str, dict[str, bool]] = {
    'maps': {
        'mappings': True,
        'memmove_64k': False,
        'memmove_from_frames': False,
        'ledger': False,
    },
    'maps_without_a_main_thread': {
        'mappings': True,
        'mmap_events': False,
        'memmove_64k': False,
        'ledger': False,
    },
    'maps_by_another_name': {
        'mappings': True,
        'mmap_events': False,
        'memmove_64k': False,
        'ledger': False,
    },
    'copies_with_numpy': {'mmap_events': True, 'memmove_64k': True, 'ledger': False},
    'copies_row_by_row': {
        'mappings': True,
        'memmove_64k': False,
        'memmove_from_frames': True,
        'ledger': False,
    },
    'submits_an_old_decoy': {'frames_not_imported': True, 'imports': False},
    'exchanges_handles': {
        'frames_read_elsewhere': True,
        'frames_not_imported': False,
        'imports': False,
    },
    'imports_twice': {
        'imports': True,
        'frames_with_own_import': True,
        'frames_not_imported': False,
    },
    'keeps_imports': {
        'imports_kept': True,
        'frames_with_own_import': True,
        'frames_not_imported': False,
        'frames_read_elsewhere': False,
    },
    'imports_decoys_alone': {'frames_not_imported': True, 'frames_attached': False},
    'unknown_exporter': {'exporters': True},
    'plain_link': {'mappings': True, 'memmove_64k': True, 'ledger': True},
    'gstreamer_copy': {'mappings': True, 'memmove_64k': True, 'ledger': True},
}
#: The first graph, watched by a user who may see nothing of it.
NOBODY = 'nobody'
PROCESSES = ('two_processes', 'two_processes_started')


class VerifyBoot(Boot):
    """By case what ``zc_verify`` said and what else was seen."""

    def case(self, name: str) -> dict[str, Any]:
        """One case that came to its end."""
        found: dict[str, Any] = self.outcome.get(name) or self.outcome.get('sabotaged', {})
        if name not in self.outcome or 'error' in found:
            pytest.fail(
                f'{name} did not run: {found.get("error", "")}\n{self.result.report()}',
                pytrace=False,
            )
        return found


@pytest.fixture(scope='module')
def verify_boot(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> VerifyBoot:
    """Run all cases in one boot."""
    compile_for_guest()
    if 'unixfd' in RUN:
        gst('fakesrc', 'num-buffers=1', '!', 'fakesink').communicate()  # its register of plugins
    options: dict[str, Any] = {
        'vivid': VIVID,
        'env': {**ENVIRONMENT, **gstreamer_for_guest()},
        'memory_mib': MEMORY_MIB,
    }
    command = [sys.executable, str(GUEST / 'verify_run.py'), *RUN, NOBODY]
    boot = boot_script(rig, tmp_path_factory.mktemp('verify'), 'verify.json', command, **options)
    return VerifyBoot(boot.result, boot.outcome)


def _told(outcome: Mapping[str, Any]) -> str:
    return json.dumps(
        {name: outcome.get(name) for name in ('exit', 'pass', 'checks', 'unreadable', 'said')},
        indent=1,
    )


def wrong_verdict(name: str, outcome: Mapping[str, Any]) -> str:
    """
    Return what ``zc_verify`` said instead of the right verdict.

    Nothing if exactly the checks of the table are false, and all others measured and true.
    """
    false = CASES[name]
    found = {
        check: (one.get('holds'), one.get('measured'))
        for check, one in outcome.get('checks', {}).items()
    }
    as_expected = found == {check: (check not in false, True) for check in INVARIANTS}
    ended = outcome.get('exit') == bool(false) and outcome.get('pass') is not bool(false)
    good = (
        as_expected
        and ended
        and outcome.get('frames', 0) >= FRAMES
        and not outcome.get('problems')
    )
    return (
        ''
        if good
        else (
            f'expected to be false: {sorted(false)}; problems of the graph: '
            f'{outcome.get("problems")}; {_told(outcome)}'
        )
    )


@pytest.mark.parametrize('name', _params(CASES))
def test_exactly_these_checks_are_false(name: str, verify_boot: VerifyBoot) -> None:
    wrong = wrong_verdict(name, verify_boot.case(name))
    assert not wrong, wrong


@pytest.mark.long
def test_the_honest_graph_is_true_each_time(verify_boot: VerifyBoot) -> None:
    outcomes = {name: verify_boot.case(name) for name in ('nothing', *NOTHING_AGAIN)}
    wrong = {name: _told(outcome) for name, outcome in outcomes.items() if not outcome['pass']}
    assert not wrong, f'{len(wrong)} of {len(outcomes)}: {wrong}'


@pytest.mark.parametrize('name', _params(name for name, wrong in CASES.items() if wrong))
def test_a_check_that_fails_says_what_to_do_next(name: str, verify_boot: VerifyBoot) -> None:
    outcome = verify_boot.case(name)
    for check in CASES[name]:
        step = outcome['checks'][check]['next_step']
        assert step and any(step in line for line in outcome['said']), _told(outcome)


@pytest.mark.parametrize('name', _params(EVIDENCE))
def test_it_is_found_by_what_the_kernel_shows(name: str, verify_boot: VerifyBoot) -> None:
    outcome = verify_boot.case(name)
    figures = {
        key: value
        for check in sorted(CASES[name])
        for key, value in outcome['checks'][check].items()
    }
    assert {key: bool(figures[key]) for key in EVIDENCE[name]} == EVIDENCE[name], _told(outcome)


@pytest.mark.parametrize('name', _params(UNKNOWN))
def test_what_nobody_can_know_is_never_passed_over(name: str, verify_boot: VerifyBoot) -> None:
    outcome = verify_boot.case(name)
    holds = {check: found['holds'] for check, found in outcome['checks'].items()}
    assert holds.pop('I4') is not True and set(holds.values()) == {True}, _told(outcome)
    assert UNKNOWN[name] in outcome['checks']['I4']['reason'] and outcome['frames'] >= FRAMES, (
        _told(outcome)
    )


@pytest.mark.long
def test_i3_says_what_it_can_not_see(verify_boot: VerifyBoot) -> None:
    outcome = verify_boot.case('imports_at_a_wrong_offset')
    assert 'where the planes begin' in outcome['checks']['I3']['not_seen'][0], _told(outcome)


@pytest.mark.long
def test_fences_tell_which_buffers_the_jobs_read(verify_boot: VerifyBoot) -> None:
    outcome = verify_boot.case('nothing')
    found = outcome['checks']['I3']
    assert (
        found['frames_by_earlier_import']
        and found['frames_confirmed_by_fence']
        and not found['frames_read_elsewhere']
    ), _told(outcome)


@pytest.mark.long
def test_numbers_of_one_kind_count_the_same_window(verify_boot: VerifyBoot) -> None:
    outcome = verify_boot.case('without_a_cache')
    detail, figures = outcome['detail'], outcome['checks']['I3']
    assert detail['submitted_frames'] == figures['frames'] == outcome['frames'], _told(outcome)
    assert [detail[name] for name in ('imports', 'releases')] == [
        figures[name] for name in ('imports', 'releases')
    ], _told(outcome)


@pytest.mark.long
def test_two_nodes_of_one_process_are_told_apart(verify_boot: VerifyBoot) -> None:
    outcome = verify_boot.case('second_node')
    inference = [
        process['node'] for process in outcome['processes'] if process['role'] == 'inference'
    ]
    assert sorted(inference) == ['/inference', '/second'], _told(outcome)


@pytest.mark.parametrize(
    ('name', 'exporter'),
    [
        ('nothing', 'videobuf2_vmalloc'),
        pytest.param('known_exporter', 'system', marks=pytest.mark.long),
        ('unknown_exporter', 'axl_shadow'),
    ],
)
def test_exporters_are_named(name: str, exporter: str, verify_boot: VerifyBoot) -> None:
    assert list(verify_boot.case(name)['checks']['I2']['exporters']) == [exporter]


def test_the_verdict_has_a_timeline(verify_boot: VerifyBoot) -> None:
    outcome = verify_boot.case('nothing')
    events = json.loads(
        (verify_boot.result.artifacts / 'nothing' / 'timeline.json').read_text(encoding='utf-8')
    )['traceEvents']
    assert 'timeline' in outcome['files'] and len(events) > 10 * FRAMES


def test_waits_for_the_device_are_counted(verify_boot: VerifyBoot) -> None:
    detail = verify_boot.case('nothing')['detail']
    assert detail['fence_wait_lines'] + detail['fence_waits_by_poll'] >= FRAMES, detail


@pytest.mark.parametrize('name', _params(SABOTAGES))
def test_the_sabotaged_graph_went_on(name: str, verify_boot: VerifyBoot) -> None:
    """
    What is found out is no accident.

    Frames flowed, through the saboteur's hands, and every one had its result.
    """
    outcome = verify_boot.case(name)
    assert outcome['seen'] >= 3 and outcome['processed'] >= FRAMES, outcome


def test_a_user_who_may_see_nothing_is_told_so(verify_boot: VerifyBoot) -> None:
    outcome = verify_boot.case(NOBODY)
    assert outcome['exit'] == 3, _told(outcome)
    assert any('not measured' in line for line in outcome['said']) and any(
        'root' in line for line in outcome['said']
    ), _told(outcome)
    assert not any(
        check['holds'] for check in outcome.get('checks', {}).values()
    ) and not outcome.get('pass'), _told(outcome)


@pytest.mark.parametrize('name', _params(PROCESSES))
def test_two_processes_share_the_frames_by_shared_memory(
    name: str, verify_boot: VerifyBoot
) -> None:
    outcome = verify_boot.case(name)
    processes = outcome['processes']
    assert {process['role'] for process in processes} == {'capture', 'inference'} and len(
        {process['pid'] for process in processes}
    ) == 2
    assert any(process.get('rung') == 'shared_memory' for process in processes), processes


@pytest.mark.long
def test_nodes_that_ran_already_go_on_undisturbed(verify_boot: VerifyBoot) -> None:
    outcome = verify_boot.case('two_processes')
    # By our own look: the card is attached to the camera's buffers while both run.
    assert list(outcome['attached'].values()).count('videobuf2_dma_contig') > 1, outcome[
        'attached'
    ]
    assert outcome['nodes_exit'] == 0


@pytest.mark.long
def test_what_a_card_needs_is_agreed_on_over_two_processes(verify_boot: VerifyBoot) -> None:
    """A card reads rows of 1366 pixels at multiples of 64 bytes only, copy-free or not at all."""
    log = verify_boot.case('two_processes')['log']
    said = [line for line in log if '[capture]: buffers: ' in line]
    assert said and 'stride 1408' in said[-1] and 'inference' in said[-1], log
    links = [line for line in log if "[inference]: '/image_raw': link is " in line]
    assert 'link is shared_memory' in links[-1] and not any('ros_message' in one for one in links)


@pytest.mark.long
def test_the_plain_link_was_one(verify_boot: VerifyBoot) -> None:
    outcome = verify_boot.case('plain_link')
    assert outcome['rung'] == 'ros_message' and outcome['copies']['from_ros'] >= FRAMES, outcome


@pytest.mark.long
def test_a_stock_pipeline_reads_the_drivers_own_buffers(verify_boot: VerifyBoot) -> None:
    reader = verify_boot.case('unixfd')['reader']
    assert len(reader['theirs']) > 2 and {*reader['theirs']} <= {*reader['own']}, reader
    assert reader['exporters'] == ['videobuf2_vmalloc'], reader
    assert 'copied 0' in reader['status'][f'reader {reader["pid"]}'], reader


@pytest.mark.parametrize('name', [*_params(PROCESSES), AFTERWARDS])
def test_nothing_is_left_on_the_device(name: str, verify_boot: VerifyBoot) -> None:
    assert not any(verify_boot.case(name)['left_on_device'].values())


def test_no_buffer_is_left_in_the_kernel(verify_boot: VerifyBoot) -> None:
    assert verify_boot.case(AFTERWARDS)['buffers'] == {}


def test_nothing_is_left_in_the_kernel_s_tracing(verify_boot: VerifyBoot) -> None:
    assert (
        verify_boot.case(AFTERWARDS)['instances'] == []
        and not verify_boot.case(AFTERWARDS)['dynamic_events']
    )


def test_the_kernel_is_content(verify_boot: VerifyBoot) -> None:
    assert not verify_boot.result.complaints, verify_boot.result.report()
    assert verify_boot.result.rc == 0, verify_boot.result.report()
