"""Where the set-up keeps things, and the lock around changing them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import fcntl
import os
from pathlib import Path
import shutil
import tempfile

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / 'build'


def cache_folder() -> Path:
    """
    Return the cache that all clones of one user share.

    It is ``build/cache`` where the user's is not writable.
    """
    base = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
    shared = Path(base) / 'zc_perception'
    with suppress(OSError):
        shared.mkdir(parents=True, exist_ok=True)
    folder = shared if os.access(shared, os.W_OK | os.X_OK) else BUILD / 'cache'
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(lock_file: Path, busy_message: str) -> Iterator[None]:
    """
    Hold ``lock_file``; print ``busy_message`` once when somebody else holds it.

    The kernel frees it on a crash.
    """
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with open(lock_file, 'w', encoding='ascii') as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(busy_message, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Yield an empty folder in ``parent`` that is gone afterwards."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix='.new-', dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def place(source: Path, target: Path) -> None:
    """Copy ``source`` to ``target`` so that ``target`` is either whole or absent."""
    with scratch_folder(target.parent) as scratch:
        shutil.copyfile(source, scratch / target.name)
        os.replace(scratch / target.name, target)
