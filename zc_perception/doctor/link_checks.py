"""The folder of the shared-memory links between processes: looked at, never made. Where it isn't there, one of another name is tried."""

from __future__ import annotations

import grp
import os
import tempfile
from collections.abc import Iterator

from zc_perception.doctor.finding import Finding, Status, ok
from zc_perception.doctor.needs import Needs
from zc_perception.doctor.system import System
from zc_perception.errors import ConfigError
from zc_perception.link.shared_memory.socket_folder import SUFFIX, default_folder, runtime_folder, socket_path


def runtime_socket_folder(system: System, needs: Needs) -> Iterator[Finding]:
    """As a publisher would find it."""
    folder = default_folder(system.environment)
    figures: dict[str, object] = {'folder': str(folder), 'exists': folder.is_dir(), 'sockets': 0}
    groups = sorted({camera.shared_memory_group for camera in needs.cameras if camera.shared_memory_group})
    step = 'set the environment variable ZC_RUNTIME_DIR to another folder, the same for all nodes'
    for name in groups:
        try:
            number = grp.getgrnam(name).gr_gid
        except KeyError:
            advice = f'groupadd {name}, or set shared_memory_group to a group that exists'
            yield Finding(Status.FAIL, f"there is no group '{name}' (shared_memory_group)", advice, name, figures)
            return
        if number not in {*os.getgroups(), os.getegid()} and system.user:
            found = f"this user is not in group '{name}' (shared_memory_group), so it can't open the folder to that group"
            yield Finding(Status.FAIL, found, f'usermod -aG {name} USER, and log in again', name, figures)
            return
    try:
        socket_path(folder, '0' * 32)
        if os.path.lexists(folder):
            if groups:
                _owned(folder, system.user)  # making it the group's is left to the nodes
            else:
                runtime_folder(None, system.environment)
    except ConfigError as error:
        found, _, advice = str(error).rpartition('; ')
        yield Finding(Status.FAIL, found or advice, advice, '', figures)
        return
    if figures['exists']:
        figures['sockets'] = sum(name.endswith(SUFFIX) for name in os.listdir(folder))
        yield ok(f"folder '{folder}' belongs to this user alone and has {figures['sockets']} sockets", **figures)
    elif refusal := _refusal(folder.parent):
        found = f"folder '{folder}' does not exist, and can't be made in {folder.parent}: {refusal}"
        yield Finding(Status.FAIL, found, f'make it with mode 0700 for this user, or {step}', '', figures)
    else:
        yield ok(f"folder '{folder}' can be made when it is needed", **figures)


def _refusal(parent: os.PathLike[str]) -> str:
    """Why no folder can be made there; empty: it can. Rights alone don't tell: file systems have a say too, and root has every right."""
    try:
        os.rmdir(tempfile.mkdtemp(prefix='.zc_doctor-', dir=parent))
    except OSError as error:
        return error.strerror or str(error)
    return ''


def _owned(folder: os.PathLike[str], user: int) -> None:
    owner = os.lstat(folder).st_uid
    if owner != user:
        raise ConfigError(
            f"folder '{folder}' for shared-memory sockets belongs to user {owner}, this is user {user}; "
            'name another one in the environment variable ZC_RUNTIME_DIR'
        )
