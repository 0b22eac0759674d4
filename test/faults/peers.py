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

"""Peers that speak wrongly at rung 2's socket: garbage, and conversations that break off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
import os
import socket
import time

from faults.harness import EVERYBODY, fault, Trial
from wire_fuzz import mutate, read_all, send_all

from zc_perception.link.shared_memory import wire


def _broken_rules(values: Mapping[str, str]) -> Counter[str]:
    """How often each, since the camera's process began."""
    return Counter(
        {name: int(text) for name, text in values.items() if name.startswith('protocol_error_')}
    )


@fault('hostile conversations', ('whatever a peer says, it is told, counted and closed; the '
                                 'camera and everybody else notice nothing'),
       bystanders=EVERYBODY)  # fmt: skip
def conversations(trial: Trial) -> None:
    stage, rng = trial.stage, trial.random
    path = stage.socket()
    before = _broken_rules(stage.witness.fresh('capture: link'))
    spare = [
        os.eventfd(0, os.EFD_CLOEXEC),
        os.open('/dev/null', os.O_RDWR | os.O_CLOEXEC),
        os.memfd_create('fault', os.MFD_CLOEXEC),
    ]
    releases = [
        (wire.pack_release(uid, generation, False), [])
        for uid in (0, 1, 2**63)
        for generation in (1, 2**40)
    ]
    count = trial.times(200, 4000)
    try:
        for number in range(count):
            hello = wire.Hello(
                rng.choice((1, 2, 64)),
                rng.choice((1, 64)),
                'hostile',
                rng.choice(('', 'f' * 32)),
                rng.random() < 0.3,
            )
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.connect(os.fspath(path))
                messages = mutate(rng, [(wire.pack_hello(hello), []), *releases], spare)
                cut = rng.randrange(len(messages) + 1)
                send_all(peer, messages[:cut])
                if rng.random() < 0.1:
                    time.sleep(0.01)
                send_all(peer, messages[cut:])
                read_all(peer, until_eof=False)
            if number % 20 == 0:  # the witness is in this process, which is busy with it
                stage.up_to_date()
    finally:
        for fd in spare:
            os.close(fd)
    stage.holders()
    values = stage.witness.fresh('capture: link')
    broken = _broken_rules(values) - before
    trial.note('conversations', count)
    trial.note('rules broken, as it counts them', broken.total())
    trial.must(len(broken) >= 2, 'kinds of broken rules that are not counted')
    trial.must(
        'internal_errors' not in values, f'internal errors: {values.get("internal_errors")}'
    )
