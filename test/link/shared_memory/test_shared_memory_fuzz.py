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
Mutated packets in both directions; the producer's in both forms of the receiver.

The long form takes half a minute.
"""

from __future__ import annotations

from pathlib import Path

from long_form import LONG
import pytest
from two_receivers import compare
from wire_fuzz import fuzz

from zc_perception.native import compiled

pytestmark = pytest.mark.usefixtures('no_fd_leak')


def test_mutated_conversations_break_no_server(folder: Path) -> None:
    outcome = fuzz(1, 30.0 if LONG else 1.0, folder)
    # It came further than the first packet, and found several ways to be refused.
    assert len(outcome['protocol_errors']) >= 3, outcome


@pytest.mark.skipif(compiled is None, reason='there is one form here: plain Python')
def test_both_forms_receive_the_same() -> None:
    assert compiled is not None
    ends = compare(2, 50_000 if LONG else 3_000, compiled)
    assert ends['frame'] > 500 and len(ends) > 6, ends
