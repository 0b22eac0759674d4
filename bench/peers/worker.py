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

"""
One process of a peer: ``python -m bench.peers.worker ROLE VARIANT FOLDER ANSWERS``.

ROLE is ``peer_out`` or ``peer_in``, FOLDER the run's folder for sockets and files, ANSWERS the
descriptor of the socket for answers. The first line of output is ``ready``, or ``absent`` with the
reason: the peer is not installed or can't be used. Then the process takes the commands of
:mod:`~bench.link_worker`.
"""

from __future__ import annotations

import contextlib
import importlib
from importlib import metadata
import os
from pathlib import Path
import shutil
import socket
import sys
import time

from bench.link_roles import Role
from bench.obeying import answer, hold_back_termination, obey
from bench.peers.processes import Variant, VARIANTS

from zc_perception.errors import ZcError

_PARENT_ENDS_S = 1.0


class _Absent(Exception):
    """The peer isn't installed, or can't be used on this machine."""


def _version(distribution: str) -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return 'unknown version'


def _make(role: str, variant: Variant, place: Path, answers: socket.socket) -> Role:
    try:
        module = importlib.import_module(f'bench.peers.{variant.module}')
    except ModuleNotFoundError as error:
        raise _Absent(
            f'{variant.distribution} is not installed: pip install {variant.distribution}'
        ) from error
    except Exception as error:  # a library for another machine, or a version with another API
        raise _Absent(
            f'{variant.distribution} ({_version(variant.distribution)}) can not be used: {error}'
        ) from error
    maker = getattr(module, variant.producer if role == 'peer_out' else variant.consumer)
    made: Role = maker(place, answers, **variant.options)
    return made


def _serve(role_name: str, variant_name: str, place: Path, answers: socket.socket) -> None:
    variant = VARIANTS[variant_name]
    with contextlib.ExitStack() as ending:
        role = _make(role_name, variant, place, answers)
        ending.callback(role.close)
        answer({'ready': _version(variant.distribution)})
        role.facts = {'version': _version(variant.distribution)}
        obey(role)


def _has_ended(parent: int) -> bool:
    """Return whether the process *parent* ends within a second; its pipes close before it ends."""
    deadline = time.monotonic() + _PARENT_ENDS_S
    while os.getppid() == parent and time.monotonic() < deadline:
        time.sleep(0.005)
    return os.getppid() != parent


def main() -> None:
    """Serve commands until standard input ends or SIGTERM."""
    hold_back_termination()
    role, variant, place = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    benchmark = os.getppid()
    try:
        _serve(role, variant, place, socket.socket(fileno=int(sys.argv[4])))
    except _Absent as absent:
        answer({'absent': str(absent)})
    except ZcError as error:
        answer({'failure': str(error)})
        raise SystemExit(1) from None
    else:
        # Standard input ended without SIGTERM: the benchmark may have been killed. Then only this
        # process can remove the folder.
        if _has_ended(benchmark):
            shutil.rmtree(place, ignore_errors=True)


if __name__ == '__main__':
    main()
