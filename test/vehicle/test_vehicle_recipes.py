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
Files shipped for a vehicle: udev rules, a systemd unit, limits, a compose file.

The tests parse them, and run the real tools where these are installed.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path
import re
import shutil
import signal
import subprocess
from typing import Any

from processes import ran
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
VEHICLE = REPOSITORY / 'config' / 'vehicle'
UNIT = VEHICLE / 'zc-perception.service'
# udev(7): keys that are compared, and keys that are set.
MATCHES = {'SUBSYSTEM', 'KERNEL', 'ATTR', 'ENV', 'ACTION'}
SETS = {'GROUP', 'MODE', 'TAG', 'SYMLINK'}
PAIR = re.compile(r'(?P<key>[A-Z]+)(?:\{(?P<of>\w+)\})?(?P<how>==|\+=|=)"(?P<value>[^"]*)"')


def rules(*, disabled: bool = False) -> list[list[re.Match[str]]]:
    """Return each rule's pairs; with *disabled* also those in comments."""
    found = []
    for line in (VEHICLE / '70-zc-perception.rules').read_text(encoding='utf-8').splitlines():
        if disabled and line.startswith('#SUBSYSTEM'):
            line = line.lstrip('#')
        if line and not line.startswith('#'):
            assert PAIR.sub('', line).replace(',', '').strip() == '', f'not understood: {line}'
            found.append(list(PAIR.finditer(line)))
    return found


def test_each_rule_compares_and_sets_what_udev_knows() -> None:
    assert len(rules(disabled=True)) > len(rules()) > 4
    for rule in rules(disabled=True):
        for pair in rule:
            assert pair['key'] in (MATCHES if pair['how'] == '==' else SETS), pair[0]
            assert (pair['of'] is not None) == (pair['key'] in ('ATTR', 'ENV')), pair[0]
        assert {pair['how'] for pair in rule} >= {'=='} and rule[-1]['how'] != '=='


def settings_of(**device: str) -> dict[str, str]:
    """Return a device's settings; rules have shell patterns, with alternatives between bars."""
    given: dict[str, str] = {}
    for rule in rules():
        if all(
            any(Path(device.get(pair['key'].lower(), '')).match(one) for one in pair[4].split('|'))
            for pair in rule
            if pair['how'] == '=='
        ):
            given |= {pair['key']: pair['value'] for pair in rule if pair['how'] != '=='}
    return given


def test_members_of_video_can_use_these_devices_and_all_others_are_left_alone() -> None:
    for subsystem, kernel in (
        ('dma_heap', 'system'), ('dma_heap', 'linux,cma'), ('misc', 'udmabuf'),
        ('video4linux', 'video0'), ('media', 'media0'), ('metis', 'metis-0:1:0'),
    ):  # fmt: skip
        given = settings_of(subsystem=subsystem, kernel=kernel)
        assert given['GROUP'] == 'video' and given['MODE'] == '0660', kernel
    assert settings_of(subsystem='misc', kernel='kvm') == settings_of(kernel='null') == {}


def unit() -> dict[str, dict[str, list[str]]]:
    """Return the unit's sections; a key may be there several times."""
    sections: dict[str, dict[str, list[str]]] = {}
    section = ''
    for line in UNIT.read_text(encoding='utf-8').splitlines():
        if line.startswith('['):
            section = line.strip('[]')
        elif line and not line.startswith('#'):
            key, _, value = line.partition('=')
            sections.setdefault(section, {}).setdefault(key, []).append(value)
    return sections


def test_the_unit_restarts_watches_and_allows_what_the_parameters_need() -> None:
    service = {key: values[-1] for key, values in unit()['Service'].items()}
    assert service['Type'] == 'notify' and service['NotifyAccess'] == 'all', (
        'the child of ros2 launch speaks'
    )
    assert int(service['WatchdogSec']) >= 10 and service['Restart'] == 'on-failure'
    assert service['KillSignal'] == 'SIGINT' and service['KillMode'] == 'mixed'
    assert int(service['LimitRTPRIO']) > 0 and service['LimitMEMLOCK'] == 'infinity'
    assert service['RuntimeDirectoryMode'] == '0700', 'an open folder would be refused'
    assert 'video' in service['SupplementaryGroups'].split()


def test_the_unit_starts_a_launch_file_with_a_parameter_file_and_more_arguments(
    tmp_path: Path,
) -> None:
    service = unit()['Service']
    variables = dict(
        pair.split('=', 1) for line in service['Environment'] for pair in line.split()
    )
    assert (REPOSITORY / 'launch' / variables['ZC_LAUNCH']).is_file()
    assert variables['ZC_RUNTIME_DIR'] == f'/run/{service["RuntimeDirectory"][0]}'
    command = service['ExecStart'][0]
    assert set(re.findall(r'\$(\w+)', command)) <= set(variables)
    assert (
        'params_file:=' in command
        and "'params_file'" in (REPOSITORY / 'zc_perception/nodes/launching.py').read_text()
    )
    shell = re.search(r"-c '(.*)'$", command)
    (tmp_path / 'ros2').write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / 'ros2').chmod(0o755)
    (tmp_path / 'setup.bash').write_text(f'PATH={tmp_path}:$PATH\n')
    given = {
        'ZC_SETUP': str(tmp_path / 'setup.bash'),
        'ZC_PARAMS': '/etc/my file.yaml',
        'ZC_ARGS': 'cameras:=front,rear overlay:=false',
    }
    done = ran('bash', '-c', shell[1], env={**os.environ, **variables, **given}, check=True)
    own = ['launch', 'zc_perception', 'perception.launch.py', 'params_file:=/etc/my file.yaml']
    assert done.stdout.splitlines() == [*own, 'cameras:=front,rear', 'overlay:=false']


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Use systemd's own reader where it is installed, and an ini parser everywhere."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=('#',))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT, encoding='utf-8')
    assert parser.sections() == ['Unit', 'Service', 'Install']
    if shutil.which('systemd-analyze'):
        said = ran('systemd-analyze', 'verify', UNIT).stderr.splitlines()
        assert [line for line in said if UNIT.name in line] == [], 'others are not our concern'
        wrong = tmp_path / UNIT.name
        text = UNIT.read_text(encoding='utf-8')
        wrong.write_text(text.replace('WatchdogSec=20', 'WatchdogSeconds=20'), encoding='utf-8')
        said = ran('systemd-analyze', 'verify', wrong).stderr
        assert 'WatchdogSeconds' in said, 'it does read it'


SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(
    (VEHICLE / 'compose.yaml').read_text(encoding='utf-8')
)['services']


def test_the_containers_share_sockets_network_and_user() -> None:
    assert set(SERVICES) == {'capture', 'inference'}
    for service in SERVICES.values():
        assert service['environment']['ZC_RUNTIME_DIR'] == '/run/zc_perception'
        assert any(volume.endswith(':/run/zc_perception') for volume in service['volumes'])
        assert service['network_mode'] == 'host' and service['ipc'] == 'host'
        assert service['stop_signal'] == 'SIGINT' and service['ulimits']['memlock'] == -1
        assert 'privileged' not in service and 'pid' not in service, 'neither is needed'
    assert len({service['user'] for service in SERVICES.values()}) == 1


def test_the_containers_run_programs_that_are_installed() -> None:
    programs = (REPOSITORY / 'setup.py').read_text(encoding='utf-8')
    for service in SERVICES.values():
        shell, option, line = service['command']
        folder = r'"\$\$\(ros2 pkg prefix zc_perception\)/lib/zc_perception/(\w+)"'
        found = re.fullmatch(rf'exec {folder} --ros-args --params-file (\S+)', line)
        assert (shell, option) == ('bash', '-c') and found and f"'{found[1]} = " in programs
        assert any(
            volume.split(':')[-2] == found[2] and volume.endswith(':ro')
            for volume in service['volumes']
        )
        assert any(
            volume.endswith(f':{service["environment"]["ROS_HOME"]}')
            for volume in service['volumes']
        ), 'for snapshots'


def test_a_stop_reaches_the_program_itself(tmp_path: Path) -> None:
    """Docker's init signals only the command's own process, none of its children."""
    (tmp_path / 'lib/zc_perception').mkdir(parents=True)
    program = tmp_path / 'lib/zc_perception/capture_node'
    program.write_text(
        '#!/bin/sh\ntrap "echo in order; exit 0" INT\necho ready\nwhile :; do sleep 0.05; done\n',
        encoding='utf-8',
    )
    ros2 = tmp_path / 'ros2'
    ros2.write_text(f'#!/bin/sh\necho {tmp_path}\n', encoding='utf-8')
    for path in (program, ros2):
        path.chmod(0o755)
    command = [word.replace('$$', '$') for word in SERVICES['capture']['command']]
    variables = {**os.environ, 'PATH': f'{tmp_path}:{os.environ["PATH"]}'}
    # A shell can't catch a signal that was ignored at its start; whole_run.py sees to that.
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=variables)
    try:
        assert process.stdout.readline() == 'ready\n'
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=120)[0] == 'in order\n' and process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_a_device_with_colons_in_its_name_is_written_out() -> None:
    """The name "/dev/metis-0:1:0" would be read as source, target and permissions."""
    for service in SERVICES.values():
        for device in service['devices']:
            if isinstance(device, str):
                expanded = re.sub(r'\$\{\w+:-([^}]*)\}', r'\1', device)
                assert expanded.count(':') == 1 and len(set(expanded.split(':'))) == 1, device
            else:
                assert set(device) == {'source', 'target', 'permissions'}
                assert 'metis' in device['source']
