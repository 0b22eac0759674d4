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
C versions of the functions that run for every frame; built if installation finds a compiler.

``compiled`` is the module with these functions; if it is ``None``, everything runs in Python. The
Python code defines the results, and the compiled code must return the same bits.

- ``decode.h`` decodes boxes, for ``detection/heads/score_filter.py`` and ``candidates.py``.
- ``masks.h`` computes masks, for ``detection/extras.py``.
- ``receiver.h`` receives frames of other processes, for ``link/shared_memory/remote_slots.py``. It
  shares the code of the wire protocol with ``client/``.
- ``frames.h`` replaces methods of frames, pools, queues, publishers and connections. The module
  of each such class passes the class to ``compiled.join()``.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from types import ModuleType

PLAIN_VARIABLE = 'ZC_PLAIN'
"""Environment variable: 1 makes everything run in Python, even with a compiled module."""
# module.c has the same number. Raise both numbers if new Python code can't work with an older
# compiled module, or if older Python code can't work with the new module.
_VERSION = 6


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get(PLAIN_VARIABLE, '') not in ('', '0'):
        return None, f'plain Python ({PLAIN_VARIABLE} is set)'
    try:
        module = importlib.import_module('zc_perception.native.compiled')
        if (
            getattr(module, 'VERSION', 1) != _VERSION
        ):  # the Python code or the compiled module was updated without the other
            return None, (
                'plain Python (the compiled module is of another version; install the package '
                'again)'
            )
        return module, 'compiled steps'
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        why = 'no C compiler was found during installation' if missing else str(error)
        return None, f'plain Python ({why})'


compiled, FORM = _load()


def how_it_runs() -> str:
    """Return a text for people: whether compiled code runs, and how Python was built."""
    built = 'optimised' if _optimised() else 'not optimised'
    name = f'{platform.python_implementation()} {platform.python_version()}'
    return f'{FORM}, {name} ({built} when it was built)'


def _optimised() -> bool:
    # Distributions optimise their interpreters, but Debian's build options don't show it.
    if sys.base_prefix == '/usr':
        return True
    import sysconfig  # imported late to save time: mostly the line above returns

    return '--enable-optimizations' in str(sysconfig.get_config_var('CONFIG_ARGS'))
