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
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from npu.json_schema import conforms

from faults import run_faults, soak
from faults.accounts import Stretch, Tally, noticed, tally
from faults.devices import Books
from faults.file_garbage import garbage
from faults.harness import EVERYBODY, Absent, Fault, Trial, run_fault
from faults.holdings import excess, frame_buffers, frame_mappings, holding, settled_excess, with_slots
from faults.outcome import ABSENT, BROKEN, HELD, SCHEMA, Outcome, Result
from faults.parameter_files import verdict
from faults.witness import Pauses

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
        # Frames that a test before has left are none of this one's.
        bounded = excess(with_slots(before, before['frame mappings'] + 1), holding(OWN))
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


def outcome_of(run: Any, tmp_path: Path, needs: str = '') -> Outcome:
    return run_fault(Fault('a fault', 'tests', 'a promise', run, False, False, needs=needs), None, tmp_path, 1, short=True)


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
    (lambda trial: trial.absent('no gcc'), BROKEN, 'no gcc'),
])  # fmt: skip
def test_what_is_not_zero_breaks_the_promise(run: Any, status: str, words: str, tmp_path: Path) -> None:
    outcome = outcome_of(run, tmp_path)
    assert outcome.status == status and words in outcome.reason
    assert Result((outcome,), True, 1).holds is (status == HELD)
    assert outcome.name in Result((outcome,), True, 1).table()


def test_what_is_absent_is_named_and_is_not_enough_by_itself(tmp_path: Path) -> None:
    absent = outcome_of(lambda trial: trial.absent('no QEMU'), tmp_path, needs='a kernel rig')
    held = outcome_of(lambda trial: None, tmp_path)
    assert absent.status == ABSENT and held.status == HELD
    nothing, something = Result((absent,) * 32, False, 1), Result((absent, held), False, 1)
    assert not nothing.holds and nothing.table().endswith('NOTHING WAS MEASURED')
    assert something.holds and something.table().endswith('NOT MEASURED: tests: a fault: no QEMU')
    assert not Result((), False, 1).holds


def stretch(first_ns: int, *captured: int, dropped: int = 0) -> Stretch:
    return Stretch(first_ns, 0, 1, captured[-1] if captured else first_ns - 1, list(captured), dropped)


def test_every_frame_since_the_last_one_before_is_looked_for() -> None:
    times = [ns * 10**9 for ns in range(1, 11)]
    last = Stretch(0, 5, 1, times[0], times[:1], 2, 7, {3}).continued()
    assert last == Stretch(times[0] + 1, 7, 1, times[0], [], 0, 7, {3})
    last.captured, last.last_ns = times[3:], times[-1]
    assert tally([last], times) == Tally(9, 7, 0, 0, pytest.approx(9.0)), 'two before the first one are missed'
    last.dropped = 2
    assert tally([last], times) == Tally(9, 7, 2, 0, pytest.approx(9.0))
    # A connection that broke, one frame after which nothing came for four, and one without a record.
    assert tally([stretch(times[0], times[0], times[1]), stretch(times[6], *times[6:])], times[:-1]) == Tally(10, 6, 0, 4, 9.0)


GOOD = Tally(100, 100, 0, 0, 4.0)


@pytest.mark.parametrize(('frames', 'others', 'words'), [
    (GOOD, (0, 0.9, 0.9), ''),
    (replace(GOOD, newest_wins=1), (0, 0.1, 0.1), 'too slow for'),
    (replace(GOOD, not_connected=2), (0, 0.1, 0.1), 'not connected'),
    (GOOD, (3, 0.1, 0.1), 'without a free slot'),
    (GOOD, (0, 1.1, 0.1), 'pauses of frames'),
    (GOOD, (0, 0.1, 1.1), 'pauses of detections'),
    (replace(GOOD, came=59), (0, 0.1, 0.1), 'published less than 50%'),
])  # fmt: skip
def test_who_stands_by_notices(frames: Tally, others: tuple[int, float, float], words: str) -> None:
    found = [what for what, count in noticed(EVERYBODY, frames, 30.0, *others).items() if count]
    assert len(found) == bool(words) and all(words in what for what in found)
    assert not noticed((), frames, 30.0, *others)


def test_a_time_in_which_nothing_ran_is_nobody_s_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    starved = noticed(EVERYBODY, replace(GOOD, came=59), 30.0, 0, 0.1, 0.1, 0.1)
    assert not any(starved.values()), 'of 3.9 s, 59 are half of what came'
    now = [100.0]
    monkeypatch.setattr('faults.witness.time', SimpleNamespace(monotonic=lambda: now[0]))
    stalled = [5.0]
    pauses = Pauses(lambda: stalled[0])
    pauses.came(90.0)
    assert pauses.longest_s == 0.0, 'nothing was before it'
    pauses.begin()
    for now_s, stalled[0] in ((100.5, 5.0), (102.0, 6.25), (102.5, 6.25)):
        pauses.came(now_s)
    assert (pauses.longest_s, pauses.longest_own_s) == (1.5, 0.5)
    pauses.came(104.0)
    assert (pauses.longest_s, pauses.longest_own_s) == (1.5, 1.5), 'a stall before excuses none that comes later'


def test_a_drop_that_the_link_did_not_make_is_unaccounted_for(tmp_path: Path) -> None:
    before, after = Books(10, 8, 0, 2, 0), Books(583, 569, 1, 12, 1)
    assert outcome_of(lambda trial: after.close(trial, before), tmp_path).status == HELD
    outcome = outcome_of(lambda trial: replace(after, newest_wins=999).close(trial, before), tmp_path)
    assert outcome.status == BROKEN and '987 frames unaccounted for' in outcome.reason


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
    first: dict[str, Any] = dict.fromkeys(soak.Minute.__dataclass_fields__, 10) | {'refused': 0}
    found = soak.Soak([soak.Minute(**first), soak.Minute(**first | last)], longest_pause_s=0.5, exit_code=0)
    found.judge()
    return found


@pytest.mark.parametrize(('last', 'words'), [
    ({}, ''), ({'memory_mb': 10.5}, ''), ({'memory_mb': 10.6}, 'memory grew by 0.60 MB'), ({'descriptors': 11}, '1 descriptors more'),
    ({'threads': 12}, '2 threads more'), ({'threads': 9}, ''), ({'refused': 1}, '1 changes of parameters refused'),
    ({'middleware_descriptors': 20}, ''), ({'middleware_descriptors': 21}, "11 descriptors of the middleware's more"),
    ({'frame_mappings': 64, 'frame_buffers': 64, 'frame_descriptors': 128}, ''), ({'frame_mappings': 65}, '65 frame mappings, at most 64'),
    ({'frame_buffers': 65}, '65 frame buffers, at most 64'), ({'frame_descriptors': 129}, '129 frame descriptors, at most 128'),
])  # fmt: skip
def test_a_soak_that_grows_is_broken(last: dict[str, float], words: str) -> None:
    broken = minutes(**last).broken()
    assert (words in '; '.join(broken)) and bool(broken) is bool(words)


class Nobody:
    """An onlooker that saw nothing bad."""

    refused, changed = 0, 60

    def __init__(self) -> None:
        self.detections = Counter({'front': 1})

    def longest_pause_s(self) -> float:
        return 0.1


_LEAKS = """
import mmap, os, sys, time
kept = []
for _ in range(int(sys.argv[1])):
    fd = os.memfd_create('zc_frame', os.MFD_CLOEXEC)
    os.ftruncate(fd, mmap.PAGESIZE)
    memory = mmap.mmap(fd, mmap.PAGESIZE)
    memory[:1] = b'x'
    kept.append((fd, memory))
print('leaked', flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(('buffers', 'broken'), [
    (soak.MOST_BUFFERS, []),
    (soak.MOST_BUFFERS + 1, ['65 frame mappings, at most 64 may be', '65 frame buffers, at most 64 may be',
                             '130 frame descriptors, at most 128 may be']),
])  # fmt: skip
def test_a_soak_sees_a_leak_of_frame_buffers(buffers: int, broken: list[str]) -> None:
    found = soak.Soak(exit_code=0)
    with subprocess.Popen([sys.executable, '-c', _LEAKS, str(buffers)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == 'leaked\n'
        looks = soak._Looks(process.pid)
        for number in range(2):
            looks.look()
            found.minutes.append(looks.minute(number, Nobody(), 1, 1))  # type: ignore[arg-type]
        process.kill()
    found.judge()
    assert found.broken() == broken


def test_a_soak_whose_changes_nobody_takes_is_broken() -> None:
    found = minutes(changes=89)
    found.due = 100
    assert found.broken() == ['only 89 of 100 changes of parameters taken']
    found.due = 98
    assert found.broken() == []


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
