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
Run ``*_cases.py`` in a process that starts with the tests' GStreamer on the linker's path.

Each of their functions is a test here, too, and shows that function's failure.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
import os
from pathlib import Path
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from environment import gstreamer_root
from environment.errors import SetupError
from environment.gstreamer_root import GStreamerRoot
import pytest

HERE = Path(__file__).parent
DOUBLES = HERE.parent / 'doubles'
TIME_LIMIT_S = 300.0

#: What each function of a file said, once for each of its parameters: nothing, or why it failed.
Outcome = dict[str, list[str]]


def gstreamer(*, newer: bool = False) -> GStreamerRoot:
    """Return the tests' GStreamer; without it, skip the test, or fail if it is required."""
    try:
        return gstreamer_root.newer_root() if newer else gstreamer_root.root()
    except SetupError as error:
        if os.environ.get('ZC_RIG') == 'required':
            raise
        pytest.skip(f'no GStreamer for tests here: {error}')


def build_plugin(root: GStreamerRoot, source: str, folder: Path, *options: str) -> Path:
    """Compile a double that is a GStreamer plugin: ``gst_frames.c`` becomes ``zcframes``."""
    target = folder / f'libgstzc{Path(source).stem.removeprefix("gst_")}.so'
    # GObject casts functions of a class to the types in its base class's table.
    warnings = ('-Wall', '-Wextra', '-Werror', '-Wno-cast-function-type')
    command = ['gcc', '-shared', '-fPIC', *warnings, *options, '-o', target, DOUBLES / source]
    subprocess.run([*command, *root.compiler_arguments(), '-ldl'], check=True)
    return target


def names_of(*cases: str | Path) -> list[str]:
    """Return the names of test functions in files, without importing them."""
    trees = [ast.parse((HERE / name).read_text(encoding='utf-8')) for name in cases]
    functions = [
        node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)
    ]
    return [name for name in functions if name.startswith('test_')]


def run_cases(
    cases: Sequence[str | Path],
    folder: Path,
    plugins: Path | None = None,
    variables: Mapping[str, str] | None = None,
    *,
    newer: bool = False,
) -> Outcome:
    """
    Run all tests of some files in one process with GStreamer (1.26 if *newer*) and ROS.

    Return each one's failures.
    """
    report = folder / 'report.xml'
    arguments = [f'--junitxml={report}', f'--basetemp={folder / "tmp"}', '-p', 'no:cacheprovider']
    arguments = ['-m', 'pytest', '-q', *arguments, *(str(HERE / name) for name in cases)]
    root, command = gstreamer(newer=newer), [sys.executable, *arguments]
    environment, ros = root.environment(plugins), os.environ.get('LD_LIBRARY_PATH')
    if newer:
        command = root.command(*command)
        command[2] += f':{ros}' if ros else ''
    else:
        environment['LD_LIBRARY_PATH'] += f':{ros}' if ros else ''
    environment |= {'PYTHONFAULTHANDLER': '1', **(variables or {})}
    result = subprocess.run(
        command, env=gstreamer_root.with_environment(environment), cwd=HERE.parents[1],
        capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False,
    )  # fmt: skip
    if not report.is_file():
        said = f'{result.stdout[-5000:]}{result.stderr[-5000:]}'
        ended = f'{", ".join(map(str, cases))} ended with status {result.returncode}'
        pytest.fail(f'{ended}:\n{said}', pytrace=False)
    outcome: Outcome = {}
    for case in ElementTree.parse(report).iter('testcase'):
        bad = [node for node in case if node.tag in ('failure', 'error', 'skipped')]
        said = '\n'.join(f'{node.get("message")}\n{node.text}' for node in bad)
        outcome.setdefault(case.get('name', '').partition('[')[0], []).append(said)
    return outcome


def check(name: str, outcome: Outcome) -> None:
    assert name in outcome, f'{name} did not run'
    found = [text for text in outcome[name] if text]
    if found:
        pytest.fail('\n'.join(found), pytrace=False)
