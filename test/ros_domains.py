"""ROS domains for tests, each locked by a file while it is used."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DOMAINS = range(1, 101)


def _domain_folder() -> Path:
    """Where this user's domains are locked. In a user namespace the same number may be another user, whose folder is closed to us."""
    for attempt in range(100):
        folder = Path(tempfile.gettempdir()) / f'zc_perception_domains_{os.getuid()}_{attempt}'
        with suppress(PermissionError):
            folder.mkdir(mode=0o700, exist_ok=True)
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
    raise RuntimeError(f'no folder for domain locks can be made in {tempfile.gettempdir()}')


@contextmanager
def locked_domain() -> Iterator[int]:
    """A ROS domain that nothing else of this user's tests has at the same time.

    :raises AssertionError: all are taken, for a minute.
    """
    folder = _domain_folder()
    deadline = time.monotonic() + 60.0
    while True:
        for offset in range(len(DOMAINS)):
            domain = DOMAINS[(os.getpid() + offset) % len(DOMAINS)]
            with open(folder / f'domain-{domain}.lock', 'w', encoding='ascii') as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield domain
                return
        assert time.monotonic() < deadline, f'all of the domains {DOMAINS[0]}..{DOMAINS[-1]} are locked in {folder}'
        time.sleep(0.1)
