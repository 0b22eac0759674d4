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

"""Deliberate faults, and the package's promise for each; see :mod:`~faults.run_faults`."""

from __future__ import annotations

from pathlib import Path
import sys

TEST = Path(__file__).resolve().parent.parent

# The shared-memory link's own tests have helpers for this: real producers and consumers, raw
# sockets that follow docs/wire.md, mutated conversations.
for _folder in (TEST.parent, TEST, TEST / 'link' / 'shared_memory'):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))
