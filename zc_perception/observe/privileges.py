"""What somebody lacks who may not look at another process or at the kernel, and how to get it.

Sources: capabilities(7), proc_pid_status(5) on ``CapEff``; sudoers(5) on ``env_reset`` and
``secure_path``.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

_STATUS = Path('/proc/self/status')
# Bits of the kernel's <linux/capability.h>.
_BITS = {'CAP_SYS_PTRACE': 19, 'CAP_SYS_ADMIN': 21}
# A shell that has sourced ROS has these. A program finds its modules by them, and a command that it
# starts, such as ``ros2 launch``, finds its nodes and the other ones of the domain.
_OF_ROS = (
    'PATH',
    'PYTHONPATH',
    'LD_LIBRARY_PATH',
    'AMENT_PREFIX_PATH',
    'ROS_DOMAIN_ID',
    'RMW_IMPLEMENTATION',
)


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


def sudo_command(program: str, environment: Mapping[str, str] = os.environ) -> str:
    """What runs a program of this package as root, from the same shell.

    sudo removes the environment, and a workspace is found by nothing else. A virtual environment
    needs none: its programs name it.

    :param program: its path, as in ``sys.argv[0]``, or its name.
    """
    path = shutil.which(program, path=environment.get('PATH'))
    words = shlex.quote(program if path is None else os.path.abspath(path))
    if not environment.get('PYTHONPATH'):
        return f'sudo {words}'
    kept = ' '.join(f'"{name}=${name}"' for name in _OF_ROS if environment.get(name))
    return f'sudo env {kept} {words}'
