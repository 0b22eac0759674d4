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
