"""Where the rig keeps what it downloaded and built, and the lock around changing it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import RigUnavailable


def default_folder() -> Path:
    """Return ``${XDG_CACHE_HOME:-~/.cache}/zc_perception/rig``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "zc_perception" / "rig"


def checked_folder(folder: Path) -> Path:
    """Create `folder` and return its real path; refuse one in which the kernel cannot build a module."""
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    if re.search(r"[\s:]", str(folder)):
        raise RigUnavailable(
            f"the rig's cache {str(folder)!r} has a space or a colon in its path, which the kernel's build "
            "system refuses; set XDG_CACHE_HOME to a folder without"
        )
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the cache's lock: two test runs prepare one after the other."""
    with open(folder / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Yield a scratch folder that becomes `target` when the block ends without an exception."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        yield scratch
        scratch.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def keep_newest(parent: Path, count: int) -> None:
    """Remove all but the `count` last changed folders below `parent` (and any old scratch folder)."""
    folders = sorted((p for p in parent.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime, reverse=True)
    for folder in folders[count:]:
        shutil.rmtree(folder, ignore_errors=True)
