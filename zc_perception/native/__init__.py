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
The functions for each frame that are also written in C, compiled if installation found a compiler.

``compiled`` is the module with these functions; if it is ``None``, everything runs in Python. The
Python code defines the results, and the compiled code must agree with it in every bit.
``decode.h`` describes the functions for boxes, which ``detection/heads/score_filter.py`` and
``candidates.py`` use. ``masks.h`` is for masks, used by ``detection/extras.py``. ``receiver.h`` is
for frames of other processes, used by ``link/shared_memory/remote_slots.py``; it shares the code
of the wire protocol with ``client/``. ``frames.h`` is for what frames, pools,
queues, publishers and connections do for each frame; the modules of these classes hand the classes
over to it.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
import sysconfig
from types import ModuleType

PLAIN_VARIABLE = 'ZC_PLAIN'
"""Set this variable to 1 in the environment to run in Python although the module is compiled."""
# The same number as in module.c; raise both when older Python or C code no longer fits the other.
_VERSION = 6


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get(PLAIN_VARIABLE, '') not in ('', '0'):
        return None, f'plain Python ({PLAIN_VARIABLE} is set)'
    try:
        module = importlib.import_module('zc_perception.native.compiled')
        if (
            getattr(module, 'VERSION', 1) != _VERSION
        ):  # the Python sources are newer or older than the compiled module
            return None, 'plain Python (the compiled steps are of another version; install again)'
        return module, 'compiled steps'
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        why = 'no C compiler was there when it was installed' if missing else str(error)
        return None, f'plain Python ({why})'


compiled, FORM = _load()


def how_it_runs() -> str:
    """Say for people whether the compiled module runs, and how the interpreter was built."""
    options = str(sysconfig.get_config_var('CONFIG_ARGS') or '')
    # Distributions optimise their interpreters, but Debian's doesn't tell that in its options.
    optimised = '--enable-optimizations' in options or sys.base_prefix == '/usr'
    built = 'optimised' if optimised else 'not optimised'
    name = f'{platform.python_implementation()} {platform.python_version()}'
    return f'{FORM}, {name} ({built} when it was built)'
