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

"""ROS of tests: it stays on this host, and each domain is locked while it is used."""

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
#  Both distributions, and whatever range the user has chosen; the profile says where discovery
#  goes.
ON_THIS_HOST = {
    'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SYSTEM_DEFAULT',
    'FASTRTPS_DEFAULT_PROFILES_FILE': _PROFILE,
    'FASTDDS_DEFAULT_PROFILES_FILE': _PROFILE,
}
# Each lock begins to look one domain further on: what an earlier test's process still says in its
# domain, the next test doesn't hear.
_turns = itertools.count(os.getpid())


def discovery_range() -> str:
    """
    Return the tests' discovery range; outside of the tests, what a user would choose.

    Programs that damage others run outside of them.
    """
    return os.environ.get('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')


@contextmanager
def locked_domain() -> Iterator[int]:
    """
    Lock a ROS domain that no other test on this network has at the same time.

    That includes tests of other users: a name without a file is the lock.

    The kernel frees it when its holder ends, and keeps the names of each network namespace apart,
    as it does with domains.

    :raises AssertionError: all are taken, for a minute.
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
