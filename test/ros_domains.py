"""ROS domains for tests, each locked while it is used."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

DOMAINS = range(1, 101)


@contextmanager
def locked_domain() -> Iterator[int]:
    """A ROS domain that no other test on this network has at the same time, whoever runs it: a name without a file is the lock.

    The kernel frees it when its holder ends, and keeps the names of each network namespace apart, as it does with domains.

    :raises AssertionError: all are taken, for a minute.
    """
    deadline = time.monotonic() + 60.0
    while True:
        for offset in range(len(DOMAINS)):
            domain = DOMAINS[(os.getpid() + offset) % len(DOMAINS)]
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
                try:
                    lock.bind(f'\0zc_perception tests, ROS domain {domain}')
                except OSError:
                    continue
                yield domain
                return
        assert time.monotonic() < deadline, f'all of the domains {DOMAINS[0]}..{DOMAINS[-1]} are locked'
        time.sleep(0.1)
