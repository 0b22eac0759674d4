"""That the harness sees what it looks for: a leak of each kind, a frame that is missing, a fault that raises, a soak that grows."""

from __future__ import annotations

import copy
import json
import mmap
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from npu.json_schema import conforms

from faults import run_faults, soak
from faults.file_garbage import garbage
from faults.harness import Absent, Fault, Trial, run_fault
from faults.holdings import excess, frame_buffers, frame_mappings, holding, settled_excess, with_slots
from faults.outcome import ABSENT, BROKEN, HELD, SCHEMA, Outcome, Result
from faults.parameter_files import verdict

OWN = os.getpid()


def frame_memory() -> int:
    fd = os.memfd_create('zc_frame', os.MFD_CLOEXEC)
    os.ftruncate(fd, mmap.PAGESIZE)
    return fd


def test_a_leak_of_each_kind_is_seen() -> None:
    before = holding(OWN)
    assert not excess(before, holding(OWN))
    one, other = socket.socketpair()
    timer, frame, stop = os.eventfd(0), frame_memory(), threading.Event()
    memory = mmap.mmap(frame, mmap.PAGESIZE)
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        found = excess(before, holding(OWN))
        assert found['fd unix socket'] == 2 and found['fd anon_inode:[eventfd]'] == 1
        assert found['fd /memfd:zc_frame'] == 2 and found['frame mappings'] == 1, 'the mapping has a descriptor of its own'
        assert found['threads'] == 1
        assert frame_mappings(OWN) >= 1 and os.fstat(frame).st_ino in frame_buffers([OWN])
        bounded = excess(with_slots(before, 1), holding(OWN))
        assert 'frame mappings' not in bounded and bounded['threads'] == 1
        # Who closes in its own time isn't one who leaks.
        threading.Timer(0.2, stop.set).start()
        assert 'threads' not in settled_excess(Counter(before) + Counter(found) - Counter({'threads': 1}), lambda: holding(OWN), 20.0)
    finally:
        stop.set()
        thread.join()
        memory.close()
        for each in (one, other):
            each.close()
        os.close(timer)
        os.close(frame)


def test_a_log_of_frames_is_no_frame() -> None:
    before = frame_mappings(OWN)
    fd = os.memfd_create('zc_frame_log', os.MFD_CLOEXEC)
    os.ftruncate(fd, mmap.PAGESIZE)
    with mmap.mmap(fd, mmap.PAGESIZE):
        assert frame_mappings(OWN) == before
    os.close(fd)


def outcome_of(run: Any, tmp_path: Path) -> Outcome:
    return run_fault(Fault('a fault', 'tests', 'a promise', run, staged=False, long_only=False), None, tmp_path, 1, short=True)


def raises(trial: Trial) -> None:
    raise OSError(28, 'No space left on device')


@pytest.mark.parametrize(('run', 'status', 'words'), [
    (lambda trial: trial.frames(10, 7, newest_wins=3), HELD, ''),
    (lambda trial: trial.frames(10, 7, newest_wins=2), BROKEN, '1 frames unaccounted for'),
    (lambda trial: trial.frames(10, 12), BROKEN, '2 frames unaccounted for'),
    (lambda trial: trial.must(False, 'ends with a bang'), BROKEN, '1 ends with a bang'),
    (lambda trial: trial.must_be_zero('tracebacks', 0), HELD, ''),
    (lambda trial: trial.leaked(Counter({'threads': 2})), BROKEN, '2 threads'),
    (raises, BROKEN, 'OSError at test_harness.py'),
    (lambda trial: trial.absent('no gcc'), ABSENT, 'no gcc'),
])  # fmt: skip
def test_what_is_not_zero_breaks_the_promise(run: Any, status: str, words: str, tmp_path: Path) -> None:
    outcome = outcome_of(run, tmp_path)
    assert outcome.status == status and words in outcome.reason
    assert Result((outcome,), True, 1).holds is (status != BROKEN)
    assert outcome.name in Result((outcome,), True, 1).table()


def test_absent_is_its_own_exception(tmp_path: Path) -> None:
    with pytest.raises(Absent):
        Trial(Outcome('a', 'b', 'c'), None, tmp_path, 1, 1, True).absent('why')


def test_the_result_is_what_its_schema_says(tmp_path: Path) -> None:
    schema = json.loads(SCHEMA.read_text(encoding='utf-8'))

    def run(trial: Trial) -> None:
        trial.frames(3, 2, newest_wins=1)
        trial.note('what is said', 'words')
        trial.worst('pause, s', 0.25)
        trial.worst('pause, s', 0.1)

    result = Result((outcome_of(run, tmp_path),), True, 7)
    result.write(tmp_path / 'x' / 'result.json')
    document = json.loads((tmp_path / 'x' / 'result.json').read_text(encoding='utf-8'))
    assert conforms(document, schema)
    assert document['faults'][0]['figures'] == {'what is said': 'words', 'pause, s': 0.25}
    for change in ({'pass': 'yes'}, {'faults': []}, {'version': 2}, {'more': 1}):
        assert not conforms(document | change, schema), change
    wrong = copy.deepcopy(document)
    wrong['faults'][0]['leaks']['threads'] = -1
    assert not conforms(wrong, schema)


def test_every_fault_has_a_promise_and_every_kind_of_the_issue_is_there() -> None:
    known = run_faults.all_faults()
    assert {each.group for each in known.values()} == set(run_faults.MODULES)
    assert all(len(each.promise.split()) > 5 for each in known.values())
    assert list(known)[-1] == 'all of it together', 'the books are closed last'


@pytest.mark.parametrize(('code', 'output', 'wrong'), [
    (2, "capture_node: error: parameter 'x' is unknown\n", ''),
    (0, 'ready\n', ''),
    (2, 'Traceback (most recent call last):\ncapture_node: error: x\n', 'a traceback'),
    (1, '', 'exit code 1'), (-11, '', 'exit code -11'),
    (2, '', '0 lines'),
    (2, 'capture_node: error: x\ncapture_node: error: y\n', '2 lines'),
    (2, 'capture_node: error: x\nand more\n', '1 lines'),
    (2, 'another: error: x\n', 'does not begin'),
])  # fmt: skip
def test_what_a_program_says_is_judged(code: int, output: str, wrong: str) -> None:
    found = verdict('capture_node', code, output)
    assert (wrong in found) and bool(found) is bool(wrong)


def test_garbage_is_the_same_for_a_seed_and_of_all_kinds() -> None:
    import random

    first, again = garbage(60, random.Random(5)), garbage(60, random.Random(5))
    assert first == again and len(first) == 60 and len(set(first)) > 40
    assert any(b'ros__parameters' in content for content in first)


def minutes(**last: float) -> soak.Soak:
    first: dict[str, Any] = dict.fromkeys(soak.Minute.__dataclass_fields__, 10)
    found = soak.Soak([soak.Minute(**first), soak.Minute(**first | last)], longest_pause_s=0.5, exit_code=0)
    found.judge()
    return found


@pytest.mark.parametrize(('last', 'words'), [
    ({}, ''), ({'memory_mb': 10.5}, ''), ({'memory_mb': 10.6}, 'memory grew by 0.60 MB'), ({'descriptors': 11}, '1 descriptors more'),
    ({'threads': 12}, '2 threads more'), ({'threads': 9}, ''),
])  # fmt: skip
def test_a_soak_that_grows_is_broken(last: dict[str, float], words: str) -> None:
    broken = minutes(**last).broken()
    assert (words in '; '.join(broken)) and bool(broken) is bool(words)


def test_a_soak_whose_detections_stop_or_that_ends_badly_is_broken() -> None:
    found = minutes()
    found.longest_pause_s, found.exit_code, found.tracebacks = 2.5, -9, 1
    assert found.broken() == ['detections stopped for 2.50 s', '1 tracebacks', 'exit code -9']


def test_the_command_lists_and_refuses() -> None:
    command = [sys.executable, str(Path(run_faults.__file__))]
    listed = subprocess.run([*command, '--list', '--only', 'kills'], capture_output=True, text=True, check=True).stdout
    assert 'kills: capture killed' in listed and 'hangs' not in listed
    wrong = subprocess.run([*command, '--only', 'no such fault'], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and 'no fault is called' in wrong.stderr
