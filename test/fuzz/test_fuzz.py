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

"""The stored corpus and some mutations of it, against all readers; a minute in the long form."""

from __future__ import annotations

from pathlib import Path

from fuzz.run_fuzz import CORPUS, defect, fuzz, TARGETS
from long_form import LONG
import pytest

pytestmark = pytest.mark.usefixtures('no_fd_leak')
SECONDS = (60.0 if LONG else 3.0) / len(TARGETS)
FILES = sorted(path for path in CORPUS.rglob('*') if path.is_file())
# Examples that readers must refuse, and the manifest of a model without its engine.
REFUSED = ('road', 'alias', 'tag', 'empty', 'deep', 'surrogate', 'opencv')


@pytest.mark.parametrize('path', FILES, ids=lambda path: f'{path.parent.name}-{path.stem}')
def test_a_stored_file_is_read_or_refused(path: Path) -> None:
    target = TARGETS[path.parent.name]
    assert defect(target, path.read_bytes()) == ''
    if path.stem not in REFUSED and not path.stem.startswith('found-'):
        target.read(path.read_bytes())  # a valid example: no error


@pytest.mark.parametrize('name', TARGETS)
def test_mutations_are_read_or_refused(name: str) -> None:
    tried, found = fuzz(name, SECONDS, seed=1)
    assert not found, found[0][1]
    assert tried


def test_every_target_has_a_corpus_and_every_folder_a_target() -> None:
    assert {path.parent.name for path in FILES} == set(TARGETS)
    assert sum(path.stat().st_size for path in FILES) < 1 << 20
