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
The steps of a frame's way that are compiled, where a C compiler was there at installation.

``compiled`` is the module with these steps, or ``None``: then everything runs in Python. The
Python code defines what the compiled steps have to yield, to the last bit. ``decode.h`` says what
the functions of boxes do; their users are ``detection/heads/score_filter.py`` and
``candidates.py``. ``masks.h`` is about masks; its user is ``detection/extras.py``. ``receiver.h``
is about frames of other processes; its user is ``link/shared_memory/remote_slots.py``. It shares
the wire's code with ``client/``. ``frames.h`` is about frames within a process; its user is
``frame.py``.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
import sysconfig
from types import ModuleType

PLAIN_VARIABLE = 'ZC_PLAIN'
"""Set it to 1 in the environment to run in plain Python although there is a compiled module."""
# As in module.c: goes up with each change that the other side has to know.
_VERSION = 5


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get(PLAIN_VARIABLE, '') not in ('', '0'):
        return None, f'plain Python ({PLAIN_VARIABLE} is set)'
    try:
        module = importlib.import_module('zc_perception.native.compiled')
        if (
            getattr(module, 'VERSION', 1) != _VERSION
        ):  # sources that are newer than what was compiled
            return None, 'plain Python (the compiled steps are of another version; install again)'
        return module, 'compiled steps'
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        why = 'no C compiler was there when it was installed' if missing else str(error)
        return None, f'plain Python ({why})'


compiled, FORM = _load()


def how_it_runs() -> str:
    """Say in words for people which form runs, and how the interpreter was built."""
    options = str(sysconfig.get_config_var('CONFIG_ARGS') or '')
    # Distributions optimise theirs, which Debian's doesn't say.
    optimised = '--enable-optimizations' in options or sys.base_prefix == '/usr'
    built = 'optimised' if optimised else 'not optimised'
    name = f'{platform.python_implementation()} {platform.python_version()}'
    return f'{FORM}, {name} ({built} when it was built)'
