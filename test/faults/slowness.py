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

"""Consumers that never read: they lose frames and are told, and no other consumer notices."""

from __future__ import annotations

import contextlib
import time

from faults.harness import EVERYBODY, fault, Trial
from memory_link import RawPeer


@fault('consumers that never read', ('who never reads holds its window and nothing else; the '
                                     'camera and the others lose no frame for it'),
       bystanders=EVERYBODY)  # fmt: skip
def never_read(trial: Trial) -> None:
    stage = trial.stage
    peers = [RawPeer.connected(stage.socket()) for _ in range(trial.times(2, 100))]
    for peer in peers:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who comes too late
            peer.hello(window=2, depth=2, name='deaf')
    began = time.monotonic()
    while time.monotonic() - began < trial.times(1, 10):
        stage.read_logs()
        time.sleep(0.05)
    held = stage.holders()
    values = stage.witness.values('capture: link')
    for peer in peers:
        peer.close()
    trial.must(0 < max(held.values(), default=0) <= 4, 'slots held beyond window and depth')
    trial.note('of them were let in', sum(name.startswith('consumer deaf') for name in values))
    trial.note('slots that they held', sum(held.values()))
    dropped = [text for name, text in values.items() if name.startswith('consumer deaf')]
    trial.must(bool(dropped) and ' dropped 0,' not in dropped[0], 'drops that are not counted')
    trial.must_be_zero(
        'frames without a slot',
        int(stage.witness.values('capture: camera').get('dropped_no_free_slot', '0')),
    )
