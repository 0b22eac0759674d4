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
Make this package's objects harmless in a forked child process.

The child has a copy of the parent's memory, but not its threads. It must not use the parent's
leases, sockets, shared memory, or locks that a thread of the parent may hold. A module with such
objects registers a function by :func:`in_child`; the child calls it right after the fork, and the
function drops the objects without releasing them. :class:`Turn` sets the order of these calls.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
import inspect
import os
from typing import Any
import weakref


class Turn(IntEnum):
    """
    The order in which a forked child drops its copies of the parent's objects.

    Leases come first, then the pools, which count the leases. Objects with a thread follow.
    The links come after the pools: closing a link may release leases, and the pools ignore this by
    then. The logs of frames come last.
    """

    FRAMES = 0
    POOLS = 1
    THREADS = 2
    LINKS = 3
    LOGS = 4


# The functions to call in a child. A method is stored as its function with a weak reference to its
# object, so that this table keeps no object alive; a plain function is stored with None.
_registered: dict[Turn, weakref.WeakKeyDictionary[Any, Callable[[Any], object] | None]] = {
    turn: weakref.WeakKeyDictionary() for turn in Turn
}


def in_child(turn: Turn, forget: Callable[[], object]) -> None:
    """
    Call *forget* in each child that is forked from now on, in the child's only thread.

    :param forget: a function, or a method; a method is called only while its object exists. It
        must take no lock: a thread of the parent may have held the lock during the fork, and that
        thread doesn't exist in the child to release it.
    """
    if inspect.ismethod(forget):
        _registered[turn][forget.__self__] = forget.__func__
    else:
        _registered[turn][forget] = None


def _forked() -> None:
    for turn in Turn:
        for owner, method in list(_registered[turn].items()):
            if method is None:
                owner()
            else:
                method(owner)


os.register_at_fork(after_in_child=_forked)
