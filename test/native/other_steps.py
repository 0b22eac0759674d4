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
Test pools, frames, queues and the link with compiled steps from another build.

``other_steps.py COMPILED SEED CASES`` is for a sanitizer. Load no module of the package earlier:
each takes its compiled classes once, at import.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
import sys

import pytest

TESTS = Path(__file__).resolve().parents[1]

if __name__ == '__main__':
    loader = importlib.machinery.ExtensionFileLoader(
        'zc_perception.native.compiled', str(Path(sys.argv[1]))
    )
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    sys.modules[loader.name] = importlib.util.module_from_spec(spec)
    loader.exec_module(sys.modules[loader.name])
    room = TESTS / 'memory'
    tests = [
        room / 'test_pool.py',
        room / 'test_pool_model.py',
        TESTS / 'test_frame.py',
        TESTS / 'test_frame_queue.py',
        TESTS / 'link/shared_memory/test_shared_memory_server.py',
    ]
    sys.exit(pytest.main(['-q', '-x', '-p', 'no:cacheprovider', *map(str, tests)]))
