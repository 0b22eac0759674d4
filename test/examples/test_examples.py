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

"""Each example runs with a real camera node: as a program, in its process, in a container."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
import re
import shutil
import sys
import threading
from typing import Any
import zlib

from entry_point_kit import install as install_metadata
from entry_point_kit import offer_alone
from nodes.container_kit import Client, Container, install
from nodes.programs import environment, Program
from nodes.ros_kit import overrides, ros, spun
import numpy as np
from processes import ran
import pytest
from rclpy.parameter import Parameter
from std_msgs.msg import Float32
from waiting import until

from zc_perception import Frame
from zc_perception.camera.kinds import CAMERAS
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.params.schema import file_schema
from zc_perception.npu.kinds import ACCELERATORS
from zc_perception.npu.manifest import EngineRules, find_manifest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / 'examples'
VIEWER = EXAMPLES / 'viewer.py'
SIZE = {'width': 100, 'height': 80}  # not a multiple of any common alignment
FRAMES = 20
TIMEOUT_S = 120.0
BRIGHTNESS = re.compile(r'frame (\d+): brightness (\d+\.\d)')
CRC = re.compile(r'frame (\d+): crc ([0-9a-f]{8})')


@contextmanager
def capture(
    domain: int, *, seen: Callable[[Frame], None] = lambda frame: None, **parameters: Any
) -> Iterator[CaptureNode]:
    """Run a camera that converts no frame; *seen* gets each frame before it is published."""
    with ros(domain) as context:
        node = CaptureNode(
            context=context,
            parameter_overrides=overrides({'framerate': 60.0, **SIZE, **parameters}),
        )
        publish = node.publisher.publish

        def see_and_publish(frame: Any) -> None:
            seen(frame)
            publish(frame)

        node.publisher.publish = see_and_publish  # type: ignore[method-assign]
        with spun(context, node):
            yield node
            assert node.publisher.statistics().conversions == 0
            assert set(node.ledger.entries()) <= {'draw'}, (
                'nobody but the synthetic camera touches pixels'
            )


def until_ctrl_c(
    program: Path, domain: int, said: re.Pattern[str]
) -> tuple[str, list[re.Match[str]]]:
    """
    Run *program* until *said* was printed :data:`FRAMES` times, then send SIGINT.

    It must exit with 0. Return all its output, and the matches.
    """
    # Unbuffered, a line takes several writes, and a log line may come between them.
    buffered = {'PYTHONUNBUFFERED': ''}
    words = (sys.executable, str(program))
    with Program(words, domain=domain, cold=True, variables=buffered).start() as running:
        until(lambda: len(said.findall(running.output)) >= FRAMES, lambda: running.output)
        status, output = running.interrupt(), running.output
    # If Ctrl-C interrupts a finalizer, Python prints this and goes on; rclpy still ends the
    # program.
    ignored = (
        r'Exception ignored in: [^\n]*__del__[^\n]*\nTraceback [^\n]*\n(?: '
        r'[^\n]*\n|\n)*KeyboardInterrupt: *\n'
    )
    assert status == 0 and 'Traceback' not in re.sub(ignored, '', output), output
    found = [*said.finditer(output)]
    numbers = [int(match[1]) for match in found]
    assert numbers == sorted(set(numbers)), 'each frame once, in order'
    return output, found


def test_the_reader_on_a_gpu_says_that_it_lacks_cupy(free_domain: int) -> None:
    script = (
        "import runpy, sys; sys.modules['cupy'] = None; "
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    words = (sys.executable, '-c', script, EXAMPLES / 'cuda_reader.py')
    done = ran(*words, env=environment(free_domain))
    assert done.returncode == 1 and done.stderr.startswith('cuda_reader needs CuPy'), done.stderr
    assert "'pip install cupy-cuda12x'" in done.stderr and 'Traceback' not in done.stderr


@pytest.mark.parametrize('name', ['asyncio_reader.py', 'README.md'])
def test_a_program_reads_pixels_until_ctrl_c_and_ends_without_a_complaint(
    free_domain: int, tmp_path: Path, name: str
) -> None:
    program = EXAMPLES / name
    if name == 'README.md':
        page = (ROOT / name).read_text(encoding='utf-8')
        block = re.search(r'^```python\n(.*?)^```$', page, re.DOTALL | re.MULTILINE)
        program = tmp_path / 'readme.py'
        program.write_text(block[1], encoding='utf-8')
    with capture(free_domain):
        _, said = until_ctrl_c(program, free_domain, BRIGHTNESS)
    assert all(float(match[2]) > 1.0 for match in said), 'the pixels were there'


def test_import_fd_reads_through_its_own_descriptors_what_the_camera_has_drawn(
    free_domain: int,
) -> None:
    drawn: dict[int, int] = {}

    def note(frame: Frame) -> None:
        with frame.map() as planes:
            drawn[frame.data.sequence] = zlib.crc32(np.ascontiguousarray(planes[0]))

    with capture(free_domain, seen=note) as camera:
        output, said = until_ctrl_c(EXAMPLES / 'import_fd.py', free_domain, CRC)
        pool = camera.camera.pool
        layout, slots = pool.layout, len(pool.slots)
    assert {int(match[1]): int(match[2], 16) for match in said}.items() <= drawn.items()
    assert len({match[2] for match in said}) > FRAMES / 2, 'they are different pictures'
    imports = [line for line in output.splitlines() if ' fd ' in line]
    assert len(imports) <= slots, 'each buffer once'
    for line in imports:
        assert '100x80 nv12 modifier 0x0' in line
        assert all(str(plane) in line for plane in layout.planes)


def test_the_own_camera_publishes_to_the_viewer_until_ctrl_c(free_domain: int) -> None:
    """Each has its own process, and both end without an error message."""
    words = (sys.executable, str(EXAMPLES / 'own_camera.py'))
    with Program(words, domain=free_domain, cold=True).start() as camera:
        _, said = until_ctrl_c(VIEWER, free_domain, BRIGHTNESS)
        assert camera.interrupt() == 0 and 'Traceback' not in camera.output, camera.output
    assert {match[2] for match in said} == {'80.0'}


def install_package(name: str, tmp_path: Path, installed: Path) -> None:
    """Install a copy of an example's package: a build leaves files in the source."""
    source = tmp_path / 'source'
    shutil.copytree(EXAMPLES / name, source)
    pip = (sys.executable, '-m', 'pip', 'install', '--quiet', '--no-build-isolation')
    done = ran(*pip, '--no-deps', '--no-index', '--target', installed, source)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_counter_camera_of_another_package_shows_the_number_of_each_frame(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package('counter_camera', tmp_path, tmp_path / 'installed')
    monkeypatch.syspath_prepend(tmp_path / 'installed')
    shown: list[tuple[int, int]] = []
    enough = threading.Event()

    def note(frame: Frame) -> None:
        with frame.map() as (luma, _):
            bits = luma[24, 2::4] > 128
        shown.append((int(np.packbits(bits).view('>u2')[0]), frame.data.sequence))
        if len(shown) >= FRAMES:
            enough.set()

    counter = {'camera': 'counter', 'width': 64, 'height': 48, 'counter_start': 1000}
    with capture(free_domain, seen=note, **counter) as camera:
        assert enough.wait(TIMEOUT_S)
        assert camera.camera.device == 'CounterCamera' and (
            camera.camera.width,
            camera.camera.height,
        ) == (64, 48)
        seen = list(shown)
        described = camera.describe_parameter('counter_step')
        assert described.description == 'counter: increase per frame.'
        assert described.integer_range[0].to_value == 1000 and not described.read_only
        assert camera.describe_parameter('camera').additional_constraints.endswith(', counter')
        result = camera.set_parameters([Parameter('counter_step', value=7)])[0]
        assert result.successful, result.reason
        until(lambda: shown[-1][0] - shown[-2][0] == 7, 'the new step')
        (refused,) = camera.set_parameters([Parameter('counter_step', value=0)])
        assert "'counter_step' is 0; it must be an integer from 1 to 1000" in refused.reason
    assert all(number == 1000 + sequence for number, sequence in seen)


def test_what_the_counter_camera_declares_is_known_everywhere(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The camera has a built-in kind's rights: two parameters and a doctor's check."""
    install_package('counter_camera', tmp_path, tmp_path / 'installed')
    monkeypatch.syspath_prepend(tmp_path / 'installed')
    monkeypatch.setenv('PYTHONPATH', str(tmp_path / 'installed'))
    monkeypatch.setenv('ROS_DOMAIN_ID', str(free_domain))
    path = tmp_path / 'vehicle.yaml'

    def said(program: str, *arguments: str, **values: object) -> str:
        lines = ''.join(f'    {name}: {value}\n' for name, value in values.items())
        path.write_text(f'/**/capture:\n  ros__parameters:\n{lines}', encoding='utf-8')
        done = ran(Path(sys.executable).with_name(program), *arguments)
        return ' '.join((done.stdout + done.stderr).split())

    def asked(**values: object) -> str:
        only = ('--only', 'parameters', 'counter')
        return said('zc_doctor', '--params-file', str(path), *only, **values)

    assert 'counter counter_start, counter_step' in said('capture_node', '--help')
    assert 'counter' in CAMERAS.names, 'from which the launch argument camera takes its choices'
    schema = file_schema()['$defs']['capture']['properties']
    assert 'counter' in schema['camera']['enum'] and schema['counter_step']['maximum'] == 1000
    assert 'each bar is 4 pixels wide' in asked(camera='counter', width=64)
    assert 'set width to 16 or more' in asked(camera='counter', width=8)
    assert ' 0 fail' in asked(camera='synthetic')
    assert "did you mean 'counter_step'?" in asked(camera='counter', counter_stap=2)
    assert "'counter_start' is -1; it must be an integer from 0" in asked(counter_start=-1)
    assert (
        "'counter_step' is read by camera: counter only, not by camera: synthetic; leave it out "
        '(line 3)'
    ) in asked(counter_step=3)
    node = ('--ros-args', '--params-file', str(path))
    assert "did you mean 'counter_start'?" in said('capture_node', *node, counter_stat=3)


def test_own_component_is_installed_and_works_in_the_camera_s_container(
    free_domain: int, tmp_path: Path
) -> None:
    installed = install(tmp_path)
    install_package('own_component', tmp_path, installed)
    with Container(installed, free_domain) as container, Client(free_domain) as ours:
        ours.loaded('CaptureNode', 'ours', parameters={'framerate': 60.0, **SIZE})
        number = ours.loaded('own_component::Brightness', 'own_component')
        values = ours.hear(Float32, 'brightness')
        ours.until(lambda: len(values) >= FRAMES, lambda: container.output)
        container.wait_for("[brightness]: '/image_raw': link is in_process")
        assert ours.unload(number).success
        assert container.interrupt() == 0
        assert 'Traceback' not in container.output and 'left behind' not in container.output, (
            container.output
        )
    assert min(each.data for each in values) > 1.0, 'the pixels were there'


# Another package's accelerator has full rights: two own parameters and a doctor's check.
COUNTER_FOLDER = EXAMPLES / 'counter_accelerator'
COUNTER = {'accelerator': 'counter', 'model': str(COUNTER_FOLDER / 'bright.yaml')}


@pytest.fixture
def accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / 'site'
    install_metadata(
        folder,
        'counter-accelerator',
        {'zc_perception.accelerators': {'counter': 'counter_accelerator:CounterAccelerator'}},
    )
    shutil.copy(COUNTER_FOLDER / 'counter_accelerator.py', folder)
    offer_alone(monkeypatch, folder)
    yield folder
    sys.modules.pop('counter_accelerator', None)


def test_it_finds_what_is_bright_and_a_change_of_its_parameter_reaches_it(
    free_domain: int, accelerator: Path
) -> None:
    with ros(free_domain) as context:
        camera = CaptureNode(
            context=context,
            parameter_overrides=overrides({'framerate': 60.0, 'pattern': 'bars', 'heap': 'memfd'}),
        )
        values = {**COUNTER, 'brightness': 255}
        node = InferenceNode(context=context, parameter_overrides=overrides(values))
        with spun(context, camera, node):
            until(lambda: node.processed >= 3)
            assert node.detected == 0, 'nothing in a picture of limited range is as bright as that'
            assert node.set_parameters([Parameter('brightness', value=150)])[0].successful
            until(lambda: node.detected > 0)
            refused = node.set_parameters([Parameter('brightness', value=256)])[0]
            assert "'brightness' is 256; it must be an integer from 1 to 255" in refused.reason


def test_a_model_s_own_file_runs_on_the_engine_that_names_it(
    accelerator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EngineRules('counter', files=('*.bright',))
    monkeypatch.setattr(ACCELERATORS.load('counter'), 'ENGINES', (engine,))
    file = tmp_path / 'my.bright'
    file.touch()
    assert find_manifest(str(file)) == find_manifest(str(tmp_path)) == file
