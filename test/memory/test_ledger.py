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

"""The copy ledger."""

from __future__ import annotations

import threading

from zc_perception.memory.ledger import CopyLedger, LedgerEntry


def test_bookings_add_up_by_reason() -> None:
    ledger = CopyLedger()
    ledger.book('tensor', 100)
    ledger.book('tensor', 50)
    ledger.book('to_ros', 7)
    assert ledger.entries() == {'tensor': LedgerEntry(2, 150), 'to_ros': LedgerEntry(1, 7)}
    assert ledger.count('tensor') == 2


def test_no_booking_of_several_threads_is_lost() -> None:
    ledger, start = CopyLedger(), threading.Barrier(4)

    def book() -> None:
        start.wait()
        for _ in range(500):
            ledger.book('draw', 3)

    threads = [threading.Thread(target=book) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.entries() == {'draw': LedgerEntry(2000, 6000)}
