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

"""ROS for tests: it stays on this host, and each test locks its domain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import itertools
import os
from pathlib import Path
import socket
import time

DOMAINS = range(1, 101)
_PROFILE = str(Path(__file__).with_name('fastdds.xml'))
# For both ROS distributions, whatever discovery range the user has set. The Fast DDS profile sets
# where discovery messages go.
ON_THIS_HOST = {
    'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SYSTEM_DEFAULT',
    'FASTRTPS_DEFAULT_PROFILES_FILE': _PROFILE,
    'FASTDDS_DEFAULT_PROFILES_FILE': _PROFILE,
}
# Each lock starts its search one domain further. So a test doesn't hear the last messages of an
# earlier test's process.
_turns = itertools.count(os.getpid())


def discovery_range() -> str:
    """Return the tests' discovery range, or the user's for programs outside of the tests."""
    return os.environ.get('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')


@contextmanager
def locked_domain() -> Iterator[int]:
    """
    Lock a ROS domain that no other test on this network uses, other users' tests included.

    The lock is an abstract socket name. The kernel frees it when its holder ends, and keeps such
    names apart for each network namespace, as it does with domains.

    :raises AssertionError: all domains stay locked for a minute.
    """
    deadline, turn = time.monotonic() + 60.0, next(_turns)
    while True:
        for offset in range(len(DOMAINS)):
            domain = DOMAINS[(turn + offset) % len(DOMAINS)]
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
                try:
                    lock.bind(f'\0zc_perception tests, ROS domain {domain}')
                except OSError:
                    continue
                yield domain
                return
        assert time.monotonic() < deadline, (
            f'all of the domains {DOMAINS[0]}..{DOMAINS[-1]} are locked'
        )
        time.sleep(0.1)
