"""What a figure depends on is in the file, and whose machine it was isn't."""

from __future__ import annotations

import getpass
import json
import os
import platform
from pathlib import Path

import pytest
from bench_kit import SCHEMA
from npu.json_schema import conforms

from zc_perception.bench import environment
from zc_perception.bench.environment import describe_environment


def test_it_is_what_the_schema_says() -> None:
    schema = SCHEMA['properties']['environment']
    described = describe_environment()
    assert conforms(described, schema)
    assert set(described) <= set(schema['properties']), 'each has its place in the schema'


def test_it_describes_this_machine() -> None:
    described = describe_environment()
    assert described['python'] == platform.python_version()
    assert described['kernel'] == os.uname().release
    assert described['cpus'] == len(os.sched_getaffinity(0))
    assert described['packages']['numpy']
    assert 'ros-rclpy' in described['packages'] or 'rclpy' in described['packages']


def test_it_names_neither_host_nor_user() -> None:
    text = json.dumps(describe_environment())
    assert os.path.expanduser('~') not in text and str(Path.cwd()) not in text
    for name in (platform.node(), getpass.getuser()):
        # A host may be called like something that every machine has.
        assert len(name) < 5 or name not in text


@pytest.mark.parametrize(
    ('content', 'prefix', 'expected'),
    [
        ('processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: other\n', 'model name', 'Some CPU @ 2 GHz'),
        ('performance\n', '', 'performance'),
        ('NVIDIA Jetson AGX Orin\0', '', 'NVIDIA Jetson AGX Orin'),
        ('processor\t: 0\n', 'model name', ''),
    ],
)
def test_files_of_the_kernel(tmp_path: Path, content: str, prefix: str, expected: str) -> None:
    (tmp_path / 'file').write_text(content, encoding='utf-8')
    assert environment._first_line(str(tmp_path / 'file'), prefix) == expected


def test_a_machine_that_says_nothing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, '_first_line', lambda path, prefix='': '')
    described = describe_environment()
    assert described['cpu'] == platform.machine() and described['governor'] == 'unknown' and described['virtual'] is False
