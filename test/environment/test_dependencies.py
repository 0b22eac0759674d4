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

"""Run-time requirements: licences that a vehicle's maker can ship, and pinned versions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, PackageNotFoundError
from pathlib import Path
import re
import sys

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from processes import ran
import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
LISTS = [HERE / f'requirements{which}.txt' for which in ('', '-jazzy', '-kilted')]
# Permissive licences, and those without duties for a program that links or imports dynamically.
ALLOWED = re.compile(
    r'\b(MIT|MIT-CMU|BSD|BSD-[23]-Clause|0BSD|Apache|Apache-2\.0|ISC|PSF|PSF-2\.0|Python '
    r'Software Foundation|Zlib|HPND|CC0-1\.0|any-OSI'
    r'|Unlicense|MPL-2\.0|Mozilla|Boost|BSL-1\.0|Expat)\b',
    re.IGNORECASE,
)
FORBIDDEN = re.compile(
    r'\b(A?GPL|LGPL|GNU|SSPL|BUSL|Commons Clause|CC-BY-NC|Proprietary)', re.IGNORECASE
)
# OpenCV's wheel links FFmpeg (LGPL-2.1) dynamically, which that licence allows; a system's own
# OpenCV replaces it. PyAV's wheel (extra video) holds x264 and x265, which are GPL: see
# docs/security.md.
DYNAMICALLY_LINKED = {'opencv-python-headless'}


def runtime() -> list[str]:
    """Return the requirements in setup.py, with all extras except the tests'."""
    tree = ast.parse((ROOT / 'setup.py').read_text(encoding='utf-8'))
    keywords = {each.arg: each.value for each in ast.walk(tree) if isinstance(each, ast.keyword)}
    extras = ast.literal_eval(keywords['extras_require'])
    named = [extras[name] for name in extras if name not in ('test', 'docs')]
    return sum(named, ast.literal_eval(keywords['install_requires']))


def needed(names: list[str]) -> Iterator[Distribution]:
    """Yield the installed ones of *names*, and all their dependencies."""
    seen: set[str] = set()
    while names:
        requirement = Requirement(names.pop())
        name = canonicalize_name(requirement.name)
        if name in seen or (
            requirement.marker is not None and not requirement.marker.evaluate({'extra': ''})
        ):
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        names += found.requires or []
        yield found


def licence(of: Distribution) -> str:
    classifiers = of.metadata.get_all('Classifier') or []
    found = [text for text in classifiers if text.startswith('License ::')]
    if not found:
        names = [path for path in of.files or [] if path.name.upper().startswith('LICEN')]
        texts = [path.read_text() for path in names if 'dist-info' in str(path)]
        permission = 'Permission is hereby granted, free of charge'
        found += ['MIT, by its text'] if any(permission in text for text in texts) else []
    for field in ('License-Expression', 'License'):
        found += (of.metadata.get(field) or '').strip().splitlines()[:1]
    return ' '.join('; '.join(text[:200] for text in found).split())


def refused(text: str) -> str:
    """Return why a licence isn't allowed; empty if it is."""
    if not text:
        return 'no licence is named'
    if FORBIDDEN.search(text):
        return f"'{text}' binds those who ship it"
    return '' if ALLOWED.search(text) else f"'{text}' is on no list here"


DISTRIBUTIONS = sorted(needed(runtime()), key=lambda each: each.metadata['Name'])


@pytest.mark.parametrize('each', DISTRIBUTIONS, ids=lambda each: each.metadata['Name'])
def test_a_dependency_may_be_shipped(each: Distribution) -> None:
    assert refused(licence(each)) == ''


def test_the_required_ones_were_looked_at() -> None:
    found = {canonicalize_name(each.metadata['Name']) for each in DISTRIBUTIONS}
    assert found >= {'av', 'numpy', 'pyyaml', 'onnxruntime', 'opencv-python-headless', 'rosbags'}
    assert found >= DYNAMICALLY_LINKED


@pytest.mark.parametrize('path', LISTS, ids=lambda path: path.stem)
def test_what_the_environment_installs_is_pinned_or_bounded(path: Path) -> None:
    lines = (line.split('#')[0].strip() for line in path.read_text(encoding='utf-8').splitlines())
    pins = [Requirement(line) for line in lines if line and not line.startswith('-')]
    operators = {str(each): {one.operator for one in each.specifier} for each in pins}
    # ROS is one exact set.
    bounds = {'==', '<', '<=', '~='} if path.stem == 'requirements' else {'=='}
    assert [each for each, used in operators.items() if not used & bounds] == []


def test_what_is_installed_agrees_with_itself() -> None:
    done = ran(sys.executable, '-m', 'pip', 'check', '-q')
    ours = [line for line in done.stdout.splitlines() if 'No broken requirements' not in line]
    # Ignore conflicts among other tools of this environment.
    known = {canonicalize_name(each.metadata['Name']) for each in DISTRIBUTIONS}
    known.add('zc-perception')
    assert [line for line in ours if canonicalize_name(line.split(' ')[0]) in known] == []
