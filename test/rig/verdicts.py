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

"""The right verdict of ``zc_verify`` on each case of ``guest/verify_run.py``, also for arm64."""

from __future__ import annotations

from collections.abc import Mapping
import json
from typing import Any

from long_form import LONG

from .graph import INVARIANTS
from .guest.verifier import FRAMES, NOTHING_AGAIN

# By sabotage of a running graph, the checks that must be false; all others must be measured and
# true.
SABOTAGES: dict[str, set[str]] = {
    'nothing': set(),
    'maps': {'I4'},
    'maps_without_a_main_thread': {'I4'},
    'maps_by_another_name': {'I4'},
    'copies_with_numpy': {'I4'},
    # No copy is larger than a row: only the mapping reveals it.
    'copies_row_by_row': {'I4'},
    # Every frame's buffer is imported and attached, as required, but the device reads another one.
    'submits_an_old_decoy': {'I3'},
    # Every handle always stands for one frame's buffer, but another frame is submitted with it.
    'exchanges_handles': {'I3'},
    'without_a_cache': set(),
    # Every frame has its own import, and a second one that no job uses.
    'imports_twice': {'I3'},
    # Every frame has its own import, which is never released.
    'keeps_imports': {'I3'},
    # No driver event contains offsets; the text of I3 mentions that.
    'imports_at_a_wrong_offset': set(),
    'second_node': set(),
    'imports_decoys_alone': {'I1', 'I3'},
}
#: Cases that have a graph of their own.
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
# Cases without proof: I4 must not be true, and gives this reason. All other checks are measured
# and true.
UNKNOWN = {
    # A mapping that is gone before the last look may or may not have lasted into the window.
    'maps_before_the_window': 'frames were mapped',
    # No file shows which pages are in a pipe.
    'holds_pages_in_a_pipe': 'has a pipe with 65536 bytes in it',
    'without_the_cameras_log': 'the copy ledger of the capture node was not read',
    # All frames are in one memfd, through which the camera writes them; no event shows that.
    'writes_through_a_memfd': (
        'frames are in udmabuf buffers, and these memfds may be the memory of these buffers; '
        'processes that have the memfds can then read the frames'
    ),
    # The pipeline's node does not name its device, so any video device may be it.
    'maps_a_pipelines_camera': 'is a video device, and perhaps the camera',
}
# The cases of the short form: each invariant is false once, and the graph without sabotage is
# true. The long form runs all.
SHORT = {'nothing', 'maps', 'imports_decoys_alone', 'unknown_exporter', 'nobody'}
RUN = [name for name in (*CASES, *UNKNOWN, *NOTHING_AGAIN, 'nobody') if LONG or name in SHORT]


# The figures that prove each fault in the false checks: more than 0, or absent. The ledger holds
# only the nodes' own reports, so it is never enough.
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
#: The exporters that I2 names.
EXPORTERS = {
    'nothing': 'videobuf2_vmalloc', 'known_exporter': 'system', 'unknown_exporter': 'axl_shadow',
}  # fmt: skip
#: The first graph, watched by a user who may see nothing of it.
NOBODY = 'nobody'
PROCESSES = ('two_processes', 'two_processes_started')


def told(outcome: Mapping[str, Any]) -> str:
    return json.dumps(
        {name: outcome.get(name) for name in ('exit', 'pass', 'checks', 'unreadable', 'said')},
        indent=1,
    )


def wrong_verdict(name: str, outcome: Mapping[str, Any]) -> str:
    """Return ``zc_verify``'s verdict if it is wrong by the tables above, else ''."""
    false = CASES[name]
    checks, problems = outcome.get('checks', {}), outcome.get('problems')
    found = {name: (one.get('holds'), one.get('measured')) for name, one in checks.items()}
    as_expected = found == {check: (check not in false, True) for check in INVARIANTS}
    ended = outcome.get('exit') == bool(false) and outcome.get('pass') is not bool(false)
    if as_expected and ended and outcome.get('frames', 0) >= FRAMES and not problems:
        return ''
    wanted = f'expected to be false: {sorted(false)}'
    return f'{wanted}; problems of the graph: {problems}; {told(outcome)}'
