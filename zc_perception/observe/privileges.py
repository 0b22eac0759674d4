"""What somebody lacks who may not look at another process or at the kernel. Sources: capabilities(7), proc_pid_status(5) on ``CapEff``."""

from __future__ import annotations

import os
from pathlib import Path

_STATUS = Path('/proc/self/status')
# Bits of the kernel's <linux/capability.h>.
_BITS = {'CAP_SYS_PTRACE': 19, 'CAP_SYS_ADMIN': 21}


def _effective(status: Path) -> int:
    """The capabilities in force; none where they can't be read."""
    try:
        lines = status.read_text(encoding='utf-8', errors='replace').splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith('CapEff:')), 0)


def as_root(*needed: str, user: int | None = None, status: Path = _STATUS) -> str:
    """The next step of whoever was refused: to be root, or as root to get the capabilities that a container took away.

    :param needed: of ``CAP_SYS_PTRACE`` and ``CAP_SYS_ADMIN``; none: both.
    :param user: effective user id; ``None``: this process's.
    """
    if (os.geteuid() if user is None else user) != 0:
        return 'run as root'
    effective = _effective(status)
    missing = [name for name in needed or _BITS if not effective >> _BITS[name] & 1]
    if not missing:
        return 'run as root of the machine itself: this one has the capabilities, but in a user namespace, or is refused otherwise'
    options = ' '.join(f'--cap-add {name.removeprefix("CAP_")}' for name in missing)
    return f'give this root {" and ".join(missing)}, which it lacks (container: {options})'
