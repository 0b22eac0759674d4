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

"""What a forked child resets, and in which order."""

from __future__ import annotations

import gc
import os
import weakref

from zc_perception.forking import in_child, Turn


def in_a_child(look: list[str]) -> str:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writing, ''.join(look).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as pipe:
        return pipe.read()


class Owner:
    def __init__(self, name: str, said: list[str], turn: Turn) -> None:  # noqa: CNL100
        self.name, self.said = name, said
        in_child(turn, self.forget)

    def forget(self) -> None:
        self.said.append(self.name)


def test_each_forgets_in_its_turn_as_long_as_it_lives() -> None:
    said: list[str] = []
    log, link = Owner('log ', said, Turn.LOGS), Owner('link ', said, Turn.LINKS)
    gone, first = Owner('gone ', said, Turn.LINKS), Owner('frames ', said, Turn.FRAMES)
    del gone
    gc.collect()
    assert in_a_child(said) == 'frames link log ' and said == []
    owners = [weakref.ref(owner) for owner in (log, link, first)]
    del log, link, first
    gc.collect()
    assert [owner() for owner in owners] == [None] * 3, 'nothing is kept'
