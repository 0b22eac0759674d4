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
Users who raise, keep, forget, sleep and destroy at random.

No user may be frozen for good, leak, or harm another one. A failure shows what the user did
before. ``ZC_USER_SEEDS=7,8 ZC_USER_FRAMES=20000`` runs other seeds, and more frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field
import os
from pathlib import Path
import sys
from typing import Any

from link_process import LinkProcess
from long_form import LONG
import pytest
from waiting import eventually

PROGRAM = Path(__file__).with_name('careless_users.py')
WAYS = ['other process', 'same process', 'messages']
SEEDS = [int(seed) for seed in os.environ.get('ZC_USER_SEEDS', '').split(',') if seed] or (
    [1, 2, 3, 4, 5] if LONG else [1]
)
FRAMES = int(os.environ.get('ZC_USER_FRAMES', 20_000 if LONG else 1_200))
"""For each seed."""
RATE_HZ = 400.0
AFTERWARDS = 40
"""Frames after all users have ended: a camera finds what was forgotten when it needs a slot."""


@dataclass
class Outcome:
    findings: list[str] = field(default_factory=list)
    users: dict[str, Any] = field(default_factory=dict)
    witness: dict[str, Any] = field(default_factory=dict)

    def check(self, name: str, wanted: Any, found: Any) -> None:
        if found != wanted:
            self.findings.append(f'{name}: {found}, wanted {wanted}')


def behave(way: str, seed: int, frames: int, domain: int, folder: Path) -> Outcome:
    outcome = Outcome()
    progress = folder / 'progress'
    progress.write_bytes(bytes(16))
    here = way == 'same process'
    with (
        LinkProcess('witness', domain, folder, PROGRAM) as witness,
        LinkProcess('users', domain, folder, PROGRAM) as users,
        LinkProcess('camera', domain, folder, PROGRAM) as camera,
    ):
        witness('open', str(progress))
        users('open', str(progress), here)
        source = users if here else camera
        if not here:
            camera('open', str(progress), way == 'messages')
        source('camera.meet')
        before = source('camera.state')
        if not here:
            camera('begin')
        users('begin', seed)
        while not users('met'):
            source('camera.run', 20, 100.0)
        source('camera.run', frames, RATE_HZ)
        outcome.users = users('finish')
        source('camera.run', AFTERWARDS, 100.0)
        last: dict[str, Any] = {}

        def quiet() -> bool:
            last.update(source('camera.state'))
            as_before = {**last, 'held': {}} == {**before, 'held': {}}
            return as_before and set(last['held']) <= {'witness'}

        assert eventually(lambda: witness('state')['last'] >= frames)
        if not eventually(quiet):
            outcome.findings.append(f'leak at the camera: {last}, before the users {before}')
        outcome.check('leak at the users', {}, users('leaked'))
        if not here:
            outcome.check('leak at the camera', {}, camera('leaked'))
        outcome.witness = witness('state')
        outcome.findings += outcome.users.pop('findings')
        for name in ('lost', 'disorder', 'torn'):
            outcome.check(f'the witness: {name}', 0, outcome.witness[name])
        done = outcome.users['done']
        if way != 'messages':
            outcome.check('copies for users', 0, done.get('conversions', 0))
        outcome.check('failed conversions for users', 0, done.get('conversion errors', 0))
    return outcome


@pytest.mark.timeout(1800 if LONG else 300)
@pytest.mark.parametrize('seed', SEEDS)
@pytest.mark.parametrize('way', WAYS)
def test_users_who_do_what_they_like(
    way: str, seed: int, free_domain: int, tmp_path: Path
) -> None:
    outcome = behave(way, seed, FRAMES, free_domain, tmp_path)
    sys.stdout.write(f'seed {seed}, {way}: {outcome.users}, {outcome.witness}\n')
    assert not outcome.findings, f'seed {seed}: ' + '\n'.join(outcome.findings)
