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

"""A forked program behaves like one in a newly started interpreter."""

from __future__ import annotations

import subprocess
import sys

from processes import ran
import pytest
import warm_start


def cold(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return ran(*words, **options)


@pytest.mark.parametrize(
    'code',
    [
        'import sys; sys.exit(3)',
        'import sys; sys.exit("in words")',
        'import os, signal; os.kill(os.getpid(), signal.SIGTERM)',
        (
            'import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), '
            'print("waited for"))).start()'
        ),
        'import sys; print(sys.stdin.read(), end=""); print("wrong", file=sys.stderr)',
    ],
)
def test_it_ends_as_an_interpreter_does(code: str) -> None:
    words = [sys.executable, '-c', code]
    forked, started = (
        warm_start.run(words, timeout=120, stdin=subprocess.DEVNULL),
        cold(words, stdin=subprocess.DEVNULL),
    )
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        started.returncode,
        started.stdout,
        started.stderr,
    )
