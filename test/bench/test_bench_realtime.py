"""``zc_bench realtime``: its load comes and goes, refusals are told, late frames count as late, and a short run over ROS."""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench_kit import Start, instead_of_measuring, processes, written
from waiting import until

from zc_perception.bench import realtime
from zc_perception.bench import stand_ins as prefilled_camera
from zc_perception.bench import zc_bench as program
from zc_perception.bench.bare_worker import NAME
from zc_perception.bench.pipeline import WORKER
from zc_perception.bench.realtime import (
    ALL,
    NONE,
    STATES,
    VARIANTS,
    RealtimePlan,
    beside_none,
    busy_machine,
    knobs,
)
from zc_perception.bench.rows import Row, Series
from zc_perception.bench.stand_ins import PrefilledCamera
from zc_perception.bench.subcommand import Measured
from zc_perception.bench.worker import BenchError, Worker
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.agreement import agree
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode

REALTIME = ('zc_bench', 'realtime')
_PR_CAPBSET_DROP, _CAP_IPC_LOCK, _CAP_SYS_NICE = 24, 14, 23
WAIT_S = 60.0


def busy(runtime: Path) -> dict[int, str]:
    return processes(runtime, realtime.BUSY_WORKER)


def test_the_load_is_there_by_name_and_gone_afterwards_whatever_happens(
    runtime: Path, no_fd_leak: None
) -> None:
    with pytest.raises(ZeroDivisionError), busy_machine(2):
        found = busy(runtime)
        assert list(found.values()) == [NAME] * 2
        assert {os.sched_getscheduler(number) for number in found} == {os.SCHED_OTHER}
        assert {os.getpriority(os.PRIO_PROCESS, number) for number in found} == {
            os.getpriority(os.PRIO_PROCESS, 0)
        }
        before = {number: used_s(number) for number in found}
        until(
            lambda: all(used_s(number) > before[number] + 0.05 for number in found), 'they compute'
        )
        raise ZeroDivisionError
    assert busy(runtime) == {}
    with pytest.raises(ChildProcessError):
        os.waitpid(min(found), os.WNOHANG)  # reaped


def used_s(number: int) -> float:
    user, system = (
        Path(f'/proc/{number}/stat').read_text(encoding='ascii').rpartition(')')[2].split()[11:13]
    )
    return (int(user) + int(system)) / os.sysconf('SC_CLK_TCK')


def test_a_load_that_does_not_start_is_an_error(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realtime, 'BUSY_WORKER', 'zc_perception.bench.no_such_module')
    with pytest.raises(BenchError, match="process 'busy' has ended"), busy_machine(2):
        raise AssertionError('nothing is measured')
    assert processes(runtime) == {}


def test_the_load_ends_when_the_benchmark_was_killed(runtime: Path) -> None:
    text = 'from zc_perception.bench.realtime import busy_machine\nwith busy_machine(2): print("on", flush=True); input()'
    with subprocess.Popen(
        [sys.executable, '-c', text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as bench:
        assert (
            bench.stdout is not None
            and bench.stdout.readline() == b'on\n'
            and len(busy(runtime)) == 2
        )
        bench.kill()
    until(lambda: not busy(runtime), f'still there: {busy(runtime)}')


def test_every_knob_is_a_parameter_of_both_nodes_and_measured_alone() -> None:
    variants = knobs([2, 5])
    assert tuple(variants) == VARIANTS and variants[NONE] == {}
    alone = [values for name, values in variants.items() if name not in (NONE, ALL)]
    assert all(
        list(values) == [name] for name, values in variants.items() if name not in (NONE, ALL)
    )
    assert variants[ALL] == {
        name: value for values in alone for name, value in values.items()
    } and variants[ALL]['cpu_affinity'] == ['5']
    for node in (CaptureNode, InferenceNode):
        assert set(variants[ALL]) <= {spec.name for spec in node.SPECS}


def series(*latencies: float) -> Series:
    return Series(latencies, 1.0, 0, {'fps': 30.0})


def test_each_is_compared_to_none_of_the_same_round() -> None:
    found = beside_none(
        {NONE: series(10.0, 20.0, 40.0), 'a': series(5.0, 10.0, 60.0), 'b': series()}
    )
    assert found[NONE].figures == found['b'].figures == {'fps': 30.0}
    assert found['a'].figures == {'fps': 30.0, 'p50_times_none': 0.5, 'p99_times_none': 1.5}
    assert beside_none({NONE: series(), 'a': series(1.0)})['a'].figures == {'fps': 30.0}
    assert math.isnan(found['b'].p99_us)


@pytest.mark.parametrize(('from_due', 'late_s'), [(True, 0.004), (True, 0.0), (False, 0.004)])
def test_a_frame_counts_from_when_it_was_due(
    from_due: bool, late_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that wakes up 4 ms late at 100 Hz."""
    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds + late_s

    monkeypatch.setattr(
        prefilled_camera,
        'time',
        SimpleNamespace(
            monotonic=lambda: now[0], monotonic_ns=lambda: round(now[0] * 1e9), sleep=sleep
        ),
    )
    camera = PrefilledCamera(
        64, 48, 100.0, 'optical', now_ns=time.monotonic_ns, ledger=CopyLedger(), from_due=from_due
    )
    camera.allocate(agree([camera.constraints()], (64, 48), wanted_slots=3))
    camera.running.set()
    try:
        for number in range(3):
            frame = camera.capture()
            assert frame is not None
            due = 1000.0 + number * 0.01 + (0.0 if from_due else late_s)
            assert frame.data.captured_ns == pytest.approx(due * 1e9, abs=1000)
            frame.release()
    finally:
        camera.close()


def refuse_everything() -> None:
    """In a child, before it runs: neither real-time priority nor locked memory, also for root."""
    libc = ctypes.CDLL(None)
    for capability in (_CAP_IPC_LOCK, _CAP_SYS_NICE):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # not root: it has none of them
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))


def test_a_short_run_without_any_rights(start: Start, runtime: Path, tmp_path: Path) -> None:
    path = tmp_path / 'realtime.json'
    arguments = (
        '--repetitions',
        '1',
        '--seconds',
        '0.4',
        '--variants',
        'gc_freeze',
        'lock_memory',
        ALL,
        '--check',
        '--json',
        str(path),
    )
    process = start(*REALTIME, *arguments, preexec_fn=refuse_everything)
    said, complained = process.communicate(timeout=300)
    assert process.returncode == 1, complained
    assert (
        'Traceback' not in complained
        and processes(runtime) == {}
        and list(runtime.iterdir()) == []
    )
    document = written(path)
    absent = document['environment']['absent']
    assert set(absent) == {'lock_memory', ALL}
    assert (
        "parameter 'lock_memory': memory is not locked: " in absent['lock_memory']
        and 'LimitMEMLOCK=infinity' in absent['lock_memory']
    )
    assert 'LimitRTPRIO=50' in absent[ALL] and 'LimitMEMLOCK' in absent[ALL]
    assert f'absent: lock_memory: {absent["lock_memory"]}' in complained
    assert document['environment']['busy_processes'] == len(os.sched_getaffinity(0)) + 1
    rows = {(row['case'], row['variant']): row for row in document['rows']}
    assert set(rows) == {
        (f'realtime_{state}', variant) for state in STATES for variant in (NONE, 'gc_freeze')
    }
    for (case, variant), row in rows.items():
        assert (row['width'], row['height'], row['rate_hz'], row['repetitions']) == (
            1920,
            1080,
            30.0,
            1,
        )
        assert (
            0 < row['median_us'] <= row['p99_us'] and row['figures']['detections_per_frame'] == 10
        )
        assert ('p99_times_none' in row['figures']) == (variant != NONE)
        if variant != NONE:
            ratio = row['p99_us'] / rows[case, NONE]['p99_us']
            assert row['figures']['p99_times_none'] == pytest.approx(ratio, abs=0.01)
            assert f', p99 {row["figures"]["p99_times_none"]:.2f}' in said
    assert 'FAIL  overloaded machine' in said and 'not measured' in said


@pytest.mark.parametrize('number', [signal.SIGINT])
def test_a_signal_under_load_leaves_nothing_behind(
    start: Start, runtime: Path, number: signal.Signals
) -> None:
    process = start(
        *REALTIME,
        '--repetitions',
        '1000',
        '--seconds',
        '0.5',
        '--variants',
        NONE,
        preexec_fn=refuse_everything,
    )
    until(
        lambda: (
            len(busy(runtime)) == len(os.sched_getaffinity(0)) + 1 or process.poll() is not None
        ),
        'a loaded series',
    )
    process.send_signal(number)
    _, complained = process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + number, complained
    assert processes(runtime) == {} and list(runtime.iterdir()) == []
    assert f'zc_bench: ended by {number.name}' in complained and 'Traceback' not in complained


def test_the_knobs_reach_the_threads_or_the_worker_says_why_not(
    free_domain: int, runtime: Path
) -> None:
    cpu = max(os.sched_getaffinity(0))
    values = {'cpu_affinity': [str(cpu)], 'realtime_priority': 3}
    worker = Worker(
        WORKER,
        ['cameras', '/bench/knobs', '64', '48', '30', '2', '1', json.dumps(values)],
        os.environ,
    )
    try:
        assert worker.ask(WAIT_S, op='grow', cameras=1) == {'cameras': 1}
        refused = worker.ask(WAIT_S, op='refused')['refused']
        threads = [
            int(task.name)
            for number in processes(runtime, WORKER)
            for task in Path(f'/proc/{number}/task').iterdir()
        ]
        bound = (
            [thread for thread in threads if os.sched_getaffinity(thread) == {cpu}]
            if len(os.sched_getaffinity(0)) > 1
            else threads
        )
        fifo = [thread for thread in threads if os.sched_getscheduler(thread) == os.SCHED_FIFO]
        assert len(bound) >= 2
        if refused:
            assert 'LimitRTPRIO=3' in refused and fifo == []
        else:
            assert (
                len(fifo) == 2
                and {os.sched_getparam(thread).sched_priority for thread in fifo} == {3}
                and set(fifo) <= set(bound)
            )
    finally:
        worker.close()


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[RealtimePlan]:
    row = Row(
        'realtime_loaded', ALL, 1920, 1080, 30.0, 1.0, 1.0, 1.0, 1, figures={'p99_times_none': 0.8}
    )
    return instead_of_measuring(monkeypatch, realtime, 'measure_realtime', Measured([row]))


def test_options_become_the_plan_and_the_bar_is_p99(
    planned: list[RealtimePlan], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ['--repetitions', '3', '--seconds', '0.5', '--delay-ms', '4', '--variants', ALL, ALL]
    assert program.main(['realtime', *options]) == 0
    assert program.main(['realtime', '--check']) == 1
    assert planned == [RealtimePlan(3, 0.5, 4.0, (ALL,)), RealtimePlan()]
    assert (
        'FAIL  overloaded machine: p99 with all real-time knobs to p99 without ≤ 0.7×: 0.80×'
        in capsys.readouterr().out
    )
