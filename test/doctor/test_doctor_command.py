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

"""``zc_doctor`` as users call it: report, JSON, exit codes, interruption; and this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
import json
import os
from pathlib import Path
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from doctor.vehicle import IDS, Vehicle
from entry_point_kit import install
from hypothesis import given
from hypothesis import strategies as st
from npu.json_schema import conforms
import numpy as np
from processes import is_alive, ran
import pytest
from waiting import until

from zc_perception.doctor import zc_doctor
from zc_perception.doctor.answers import describe_ros
from zc_perception.doctor.command import checks_of, exit_code, Result, run_checks
from zc_perception.doctor.needs import needs_of, node_need, read_needs
from zc_perception.errors import CameraError, ConfigError
from zc_perception.machine.asking import NoAnswerError, Question
from zc_perception.machine.checks import Check, Finding, Need, Needs, ok, Status
from zc_perception.machine.system import System

SCHEMA = json.loads(
    Path(zc_doctor.__file__).with_name('doctor.schema.json').read_text(encoding='utf-8')
)
CONFIG = Path(__file__).parents[2] / 'config' / 'perception.yaml'
COMMAND = [sys.executable, '-m', 'zc_perception.doctor.zc_doctor']


def wrong(document: dict[str, Any]) -> list[str]:
    found = [] if conforms(document, SCHEMA) else ['it is not what the schema says']
    checks = document['checks']
    found += [
        f'{c["id"]}: no advice'
        for c in checks
        if c['status'] in ('warn', 'fail') and not c['advice']
    ]
    found += [f'{c["id"]}: not in the table' for c in checks if c['id'] not in IDS]
    found += [
        f'{c["id"]}: of group {c["group"]}' for c in checks if c['id'].split('.')[0] != c['group']
    ]
    counts = {
        status: sum(c['status'] == status for c in checks)
        for status in ('ok', 'warn', 'fail', 'skip')
    }
    if document['summary'] != counts | {'exit_code': int(counts['fail'] > 0)}:
        found.append('the summary does not add up')
    # Running nodes in different domains may share a name: other tests' nodes do.
    subjects = [(c['id'], c['subject']) for c in checks if c['id'] != 'agreement.running']
    found += [f'{where} comes twice' for where in set(subjects) if subjects.count(where) > 1]
    return found


def otherwise(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return reports that each break the schema in one place."""
    first = document['checks'][0]
    checks = [first | change for change in ({'status': 'good'}, {'figures': []}, {'found': ''})]
    checks.append({name: value for name, value in first.items() if name != 'advice'})
    environment = {
        name: value for name, value in document['environment'].items() if name != 'kernel'
    }
    changes = [
        {'version': 2},
        {'more': 1},
        {'environment': environment},
        {'summary': document['summary'] | {'ok': -1}},
    ]
    return [document | change for change in [*changes, *({'checks': [check]} for check in checks)]]


def doctor(vehicle: Vehicle, *arguments: str, file: str = 'vehicle') -> int:
    """Run the doctor with the vehicle's parameter file, under this name; empty: without it."""
    words = list(arguments)
    if file:
        path = vehicle.root.parent / f'{file}.yaml'
        sections = {name: {'ros__parameters': one} for name, one in (vehicle.yaml or {}).items()}
        path.write_text(json.dumps(sections), encoding='utf-8')
        words += ['--params-file', str(path)]
    return zc_doctor.main(words, vehicle.system())


def test_a_healthy_vehicle_may_drive(vehicle: Vehicle, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(vehicle) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith('zc_doctor ') and '/capture (v4l2)' in lines[0]
    assert '/inference (axl, model road)' in lines[0]
    assert all(re.match(r'(ok  |      ->) ', line) for line in lines[1:-1])
    assert re.fullmatch(
        r'\d+ ok, 0 warn, 0 fail, \d+ do not apply \(--verbose shows them\)', lines[-1]
    )


def test_a_broken_vehicle_may_not(vehicle: Vehicle, capsys: pytest.CaptureFixture[str]) -> None:
    vehicle.level = 0
    (vehicle.pci / 'current_link_width').write_text('1\n')
    assert doctor(vehicle) == 1
    out = capsys.readouterr().out
    assert (
        'FAIL  metis.ioctls [metis-0:1:0]: the driver has no import and submit ioctls (ENOTTY)'
        in out
    )
    assert (
        'FAIL  metis.link [metis-0:1:0]: the PCIe link of 0000:01:00.0 runs at 8 GT/s x1 '
        'instead of 8 GT/s x4'
    ) in out
    assert out.count('\n      -> ') == out.count('FAIL  ') == 5


def test_the_json_is_what_the_schema_says(
    vehicle: Vehicle, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    vehicle.empty_heaps = {'dma_heap/system'}
    assert doctor(vehicle, '--json') == 0
    document = json.loads(capsys.readouterr().out)
    assert wrong(document) == [] and [c for c in document['checks'] if c['status'] == 'warn']
    assert [other for other in otherwise(document) if conforms(other, SCHEMA)] == []
    assert sorted({c['id'] for c in document['checks']}) == sorted(IDS)
    assert document['params_file'].endswith('vehicle.yaml')
    folder = tmp_path / 'new/folder'
    assert doctor(vehicle, '--json', str(folder / 'doctor.json'), file='') == 0
    written = json.loads((folder / 'doctor.json').read_text(encoding='utf-8'))
    assert wrong(written) == [] and written['params_file'] == ''
    assert os.listdir(folder) == ['doctor.json']
    report = capsys.readouterr()
    assert 'no parameter file was given, so all checks run' in report.out.splitlines()[0]
    assert report.err == f"zc_doctor: made folder '{folder}' for --json\n"
    assert 'do not apply' in report.out
    assert doctor(vehicle, '--json', str(folder / 'doctor.json'), '--only', 'kernel') == 0
    assert capsys.readouterr().err == ''


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (
            ['--params-file', '/nowhere.yaml'],
            "parameter file '/nowhere.yaml' can't be read: No such file or directory",
        ),
        (['--params-file', ''], "parameter file '' can't be read: No such file or directory"),
        (['--cameras', 'left'], '--cameras needs --params-file'),
        (['--only', 'kernel', '--json', '/proc/nowhere/doctor.json'], "can't be written"),
        (['--time-limit', 'nan'], '--time-limit is nan'),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert zc_doctor.main(arguments) == 2
    report = capsys.readouterr()
    lines = report.err.splitlines()
    assert report.out == '', 'it ends before the first check'
    assert len(lines) == 1 and lines[0].startswith('zc_doctor: error: ') and words in lines[0]


def test_this_machine_is_examined_for_real_quickly_and_left_as_it_is(tmp_path: Path) -> None:
    """This works on any machine: a container without heaps and cameras, or a vehicle."""
    environment = {**os.environ, 'ZC_RUNTIME_DIR': str(tmp_path / 'sockets')}
    result = ran(*COMMAND, '--json', '--params-file', CONFIG, env=environment, cwd=tmp_path)
    document = json.loads(result.stdout)
    assert result.returncode == document['summary']['exit_code'], result.stderr
    assert wrong(document) == []
    status = {(c['id'], c['subject']): c['status'] for c in document['checks']}
    # The synthetic camera, memfds and the CPU work everywhere.
    everywhere = [
        ('parameters.file', ''), ('kernel.release', ''), ('ros.rclpy', ''), ('ros.messages', ''),
        ('buffers.cpu', 'memfd'), ('cameras.configured', '/capture'),
        ('model.load', '/inference'), ('model.manifest', '/inference'),
    ]  # fmt: skip
    assert {status[each] for each in everywhere} == {'ok'}, document
    (checked,) = (c['figures'] for c in document['checks'] if c['id'] == 'parameters.file')
    assert checked['checked'] > 60, 'the shipped file is accepted whole'
    if not Path('/dev/dma_heap').exists() and not Path('/dev/udmabuf').exists():
        assert status['memory.heaps', ''] == 'warn'
    assert os.listdir(tmp_path) == [], 'it made something'


def test_ros_is_not_needed(tmp_path: Path) -> None:
    """The doctor itself never imports rclpy, which is broken here."""
    for package in ('rclpy', 'rcl_interfaces', 'vision_msgs'):
        (tmp_path / f'{package}.py').write_text('raise ImportError("no ROS here")')
    environment = {**os.environ, 'PYTHONPATH': str(tmp_path)}
    groups = ('ros', 'parameters', 'kernel', 'link')
    command = [*COMMAND, '--json', '--params-file', CONFIG, '--only', *groups]
    result = ran(*command, env=environment)
    status = {c['id']: c['status'] for c in json.loads(result.stdout)['checks']}
    assert result.returncode == 1
    expected = {'ros.rclpy': 'fail', 'ros.messages': 'skip', 'parameters.file': 'warn'}
    assert status | expected | {'kernel.release': 'ok'} == status


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f'/proc/{pid}/task').iterdir():
        with suppress(OSError):  # the thread has ended meanwhile
            found += map(int, (task / 'children').read_text().split())
    return found


def test_a_signal_ends_it_and_all_that_it_has_started(tmp_path: Path) -> None:
    """The process that imports rclpy waits for input."""
    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    (tmp_path / 'rclpy.py').write_text(f'open({str(pipe)!r}).read()')
    process = subprocess.Popen(
        [*COMMAND, '--only', 'ros'],
        env={**os.environ, 'PYTHONPATH': str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with pipe.open('w', encoding='ascii'):  # the process has begun to read
            started = children(process.pid)
            assert len(started) == 1 and is_alive(started[0])
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 128 + signal.SIGTERM
            assert errors == 'zc_doctor: ended by SIGTERM\n'
            until(lambda: not is_alive(started[0]))
    finally:
        process.kill()
        process.wait()


def test_nothing_from_outside_moves_the_cursor_or_forges_a_line(
    vehicle: Vehicle, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of cards and files, and parameter values, may hold any characters."""
    forged = '\x1b[2J\nok    forged.line: all is well\x1b[8m'
    assert vehicle.yaml is not None
    vehicle.yaml['/**/capture'].update(
        device=f'/dev/{forged}', camera_info_url=f'file:///{forged}'
    )
    vehicle.yaml['/**/inference'].update(model=forged)
    vehicle.write('proc/sys/kernel/osrelease', f'6.8.0{forged}')
    assert doctor(vehicle, '--verbose', file=forged.replace('/', '')) == 1
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert all(line.isprintable() for line in lines) and out.count('\n') == len(lines)
    assert not [line for line in lines if line.startswith('ok    forged')]
    assert r'\x1b[2J\nok    forged' in lines[0]
    assert len([line for line in lines if r'\x1b[2J' in line]) > 2
    folder = str(vehicle.root / forged.strip('\x1b') / 'x')
    assert doctor(vehicle, '--only', 'kernel', '--json', folder) == 0
    assert len(made := capsys.readouterr().err.splitlines()) == 1 and made[0].isprintable()


def test_a_group_that_is_none_is_told_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert zc_doctor.main(['--only', 'metiss']) == 2
    said = capsys.readouterr().err
    assert all(check.group in said for check in checks_of()) and "did you mean 'metis'?" in said


@pytest.mark.parametrize(
    ('arguments', 'errors'), [([], 'null'), (['--json'], 'full'), (['--unknown'], 'full')]
)
def test_a_full_disk_is_wrong_use_and_no_failed_check(arguments: list[str], errors: str) -> None:
    with open('/dev/full', 'w', encoding='ascii') as full:
        command = [*COMMAND, '--only', 'kernel', *arguments]
        result = subprocess.run(
            command, stdout=full, stderr=full if errors == 'full' else subprocess.PIPE, text=True,
            timeout=120, check=False,
        )  # fmt: skip
    assert result.returncode == 2, result.stderr
    if errors != 'full':
        told = "the report can't be written to stdout: No space left on device; send it to another"
        assert result.stderr == f'zc_doctor: error: {told} place\n'


def test_a_reader_that_has_enough_is_no_traceback() -> None:
    words = '--verbose --only kernel limits time metis | head -n 1'
    result = ran('bash', '-c', f'{shlex.join(COMMAND)} {words}')
    assert result.stdout.startswith('zc_doctor ') and 'Traceback' not in result.stderr


# A failing check doesn't stop the others; the report names it, and keeps the order.


def good(system: System, needs: Needs) -> Iterator[Finding]:
    yield ok('fine', 'one')
    yield ok('fine', 'two')


def raising(system: System, needs: Needs) -> Iterator[Finding]:
    yield ok('so far')
    raise ZeroDivisionError('division by zero')


def panicking(system: System, needs: Needs) -> Iterable[Finding]:
    raise BaseException('as a Rust library')


def complaining(system: System, needs: Needs) -> Iterable[Finding]:
    raise CameraError('the camera said no')


def run(*checks: Check, limit_s: float = 20.0, system: System | None = None) -> list[Result]:
    return list(run_checks(checks, system or System(), Needs(), limit_s))


@pytest.mark.parametrize(
    ('function', 'words'),
    [
        (raising, 'ZeroDivisionError: division by zero'),
        (complaining, 'the camera said no'),
        (lambda *_: (), 'no result'),
        (lambda *_: ['well'], "TypeError: the check gave 'well', which is no Finding"),
        (lambda *_: [ok('fast', ms=np.float32(1.5))], 'float32 is not JSON serializable'),
        (lambda *_: [Finding('ok', 'fine')], "TypeError: a finding has status 'ok', which is no"),
        (lambda *_: [Finding(Status.OK, 'fine', figures=[8])], 'TypeError: '),
        (lambda *_: sys.exit('this machine has no such card'), 'SystemExit: this machine has no'),
        (panicking, 'BaseException: as a Rust library'),
    ],
)
def test_a_check_that_goes_wrong_is_named_and_the_others_are_heard(
    function: Any, words: str
) -> None:
    results = run(
        Check('a.bad', 'something', function),
        Check('a.good', 'something', good),
        Check('b.good', 'something', good),
    )
    bad = [r for r in results if r.check.id == 'a.bad' and r.finding.status is Status.FAIL]
    assert (
        len(bad) == 1
        and bad[0].finding.found.startswith('could not be checked: ')
        and words in bad[0].finding.found
    )
    assert [r.finding.found for r in results if r.check.id == 'a.bad' and r not in bad] == (
        ['so far'] if function is raising else []
    )
    assert '--only' in bad[0].finding.advice and bad[0].finding.figures == {'checked': False}
    assert [(r.check.id, r.finding.subject) for r in results if r.check.id != 'a.bad'] == [
        ('a.good', 'one'), ('a.good', 'two'), ('b.good', 'one'), ('b.good', 'two'),
    ]  # fmt: skip
    assert (
        exit_code(results) == 1 and exit_code([r for r in results if r.check.id != 'a.bad']) == 0
    )


OTHERS = """
import ctypes, os, sys
from zc_perception.camera.camera import DrawnCamera
from zc_perception.machine.checks import Check, ok

def printing(system, needs):
    print('of Python')
    ctypes.CDLL(None).puts(b'of C')
    os.write(1, b'of the kernel')
    yield ok('printed')

class Printing(DrawnCamera):
    CHECKS = (Check('others.prints', 'something', printing),)

    @classmethod
    def heap_use(cls, values):
        raise KeyError('heap')

class Wrong(DrawnCamera):
    CHECKS = (printing,)
"""


def with_others(folder: Path, kind: str, *groups: str) -> subprocess.CompletedProcess[str]:
    install(folder, 'others', {'zc_perception.cameras': {'other': f'others:{kind}'}})
    (folder / 'others.py').write_text(OTHERS, encoding='utf-8')
    file = folder / 'vehicle.yaml'
    file.write_text('capture: {ros__parameters: {camera: other}}', encoding='utf-8')
    words = ['--json', '--params-file', str(file), '--only', *groups]
    return ran(*COMMAND, *words, env={**os.environ, 'PYTHONPATH': str(folder)})


def test_what_others_print_is_not_in_the_json_and_their_errors_are_findings(
    tmp_path: Path,
) -> None:
    result = with_others(tmp_path, 'Printing', 'others', 'agreement')
    found = {c['id']: c['found'] for c in json.loads(result.stdout)['checks']}
    assert found['others.prints'] == 'printed'
    assert found['agreement.planned'] == "could not be checked: KeyError: 'heap'"
    assert all(words in result.stderr for words in ('of Python', 'of C', 'of the kernel'))


def test_a_class_whose_checks_are_none_is_named(tmp_path: Path) -> None:
    result = with_others(tmp_path, 'Wrong', 'kernel')
    assert result.returncode == 2 and "camera 'other' of package 'others' has CHECKS" in (
        result.stderr
    )
    assert result.stderr.count('zc_doctor: error: ') == 1


def test_a_check_that_hangs_is_left_behind_and_the_rest_of_its_group_runs() -> None:
    go_on = threading.Event()

    def hanging(system: System, needs: Needs) -> Iterator[Finding]:
        go_on.wait()
        yield ok('late')

    began = time.monotonic()
    results = run(
        Check('a.hangs', 'something', hanging), Check('a.good', 'something', good), limit_s=4.0
    )
    try:
        assert time.monotonic() - began < 60, 'it was not waited for'
        assert [(r.check.id, r.finding.status.value) for r in results] == [
            ('a.hangs', 'fail'),
            ('a.good', 'ok'),
            ('a.good', 'ok'),
        ]
        assert '4 s' in results[0].finding.found
        assert 'zc_doctor a.hangs' in {thread.name for thread in threading.enumerate()}
    finally:
        go_on.set()
    for thread in threading.enumerate():
        if thread.name == 'zc_doctor a.hangs':
            thread.join(60)
            assert not thread.is_alive()


def test_groups_run_side_by_side_and_checks_of_a_group_one_after_the_other() -> None:
    both = threading.Barrier(2, timeout=60)
    inside: list[str] = []

    def meeting(system: System, needs: Needs) -> Iterator[Finding]:
        both.wait()
        yield ok('met')

    def alone(system: System, needs: Needs) -> Iterator[Finding]:
        inside.append('in')
        assert inside == ['in']
        inside.clear()
        yield ok('alone')

    results = run(
        Check('a.meets', 'something', meeting),
        Check('b.meets', 'something', meeting),
        *(Check(f'c.{n}', 'something', alone) for n in range(5)),
    )
    assert [r.finding.status for r in results] == [Status.OK] * 7


def test_each_question_is_asked_once_and_a_refusal_is_remembered(vehicle: Vehicle) -> None:
    vehicle.examine()
    assert sorted(vehicle.asked) == sorted(set(vehicle.asked))
    asked: list[Question] = []

    def refuse(question: Question) -> dict[str, Any]:
        asked.append(question)
        raise NoAnswerError('no answer to ros')

    results = run(
        *checks_of(('ros',)), system=System(root=vehicle.root, environment={}, ask=refuse)
    )
    assert asked == [describe_ros]
    assert [r.finding.status for r in results] == [Status.WARN, *[Status.FAIL] * 4]
    assert all('no answer to ros' in r.finding.found for r in results[1:])


# What a parameter file requires of the machine.


DEFAULTS = node_need('capture', {}), node_need('inference', {})


def test_the_shipped_file_asks_for_nothing_special() -> None:
    needs = read_needs(str(CONFIG))
    assert (*needs.cameras, *needs.inferences) == DEFAULTS
    assert (
        needs.accelerator('axl') is Need.POSSIBLE
        and needs.camera('v4l2') is Need.UNUSED
        and needs.heap('dma_heap/system') is Need.POSSIBLE
    )


def sections(text: str, tmp_path: Path, namespaces: Sequence[str] = ()) -> Needs:
    path = tmp_path / 'vehicle.yaml'
    path.write_text(text, encoding='utf-8')
    return read_needs(str(path), namespaces)


def test_sections_that_name_a_node_are_one_camera_each(tmp_path: Path) -> None:
    needs = sections(
        """
/**/capture: {ros__parameters: {camera: v4l2, slots: 5}}
left:
  capture: {ros__parameters: {device: /dev/video2}}
/right/capture: {ros__parameters: {device: /dev/video4, slots: 7}}
/**/inference: {ros__parameters: {accelerator: axl, in_flight: 2}}
/other_package: {ros__parameters: {width: 1}}
""",
        tmp_path,
    )
    assert [(c.node, c['camera'], c['device'], c['slots']) for c in needs.cameras] == [
        ('/left/capture', 'v4l2', '/dev/video2', 5), ('/right/capture', 'v4l2', '/dev/video4', 7),
    ]  # fmt: skip
    assert [(i.node, i.kind, i['in_flight']) for i in needs.inferences] == [
        ('/inference', 'axl', 2)
    ]


def test_namespaces_can_be_given_as_for_perception(tmp_path: Path) -> None:
    text = (
        '/**/capture: {ros__parameters: {camera: v4l2}}\n'
        '/front/capture: {ros__parameters: {slots: 3}}\n'
    )
    needs = sections(text, tmp_path, ['front', 'rear'])
    assert [(c.node, c['camera'], c['slots']) for c in needs.cameras] == [
        ('/front/capture', 'v4l2', 3),
        ('/rear/capture', 'v4l2', 8),
    ]
    with pytest.raises(ConfigError, match='--params-file'):
        read_needs(None, ['front'])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from([*(name for need in DEFAULTS for name in need.values), 'other'])


@given(
    st.dictionaries(KEYS, VALUES, max_size=6),
    st.sampled_from(['/**', '/**/capture', '/x/inference', '/capture']),
)
def test_no_value_ends_the_doctor(values: dict[str, object], section: str) -> None:
    needs = needs_of([(section, values)], 'file')
    assert needs.summary()
    for need, default in zip((*needs.cameras, *needs.inferences), DEFAULTS, strict=True):
        assert {name: type(value) for name, value in need.values.items()} == {
            name: type(value) for name, value in default.values.items()
        }
