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
The copy ledger: a record of how many bytes of pixels the CPU reads and writes, and why.

Code whose work reads or writes pixels calls :meth:`CopyLedger.book`. The ledger misses the copies
of code that doesn't call it. So ``zc_verify`` also looks for such copies, in the kernel's events.

This file isn't in ``observe/``, because cameras and accelerators use this file, but may not import
``observe/``, which is a higher layer.
"""

from __future__ import annotations

from dataclasses import dataclass
import threading


@dataclass(frozen=True)
class LedgerEntry:
    """How often the CPU read or wrote pixels for one reason, and the sum of the bytes."""

    count: int
    bytes: int  # noqa: A003


class CopyLedger:
    """
    Counts for each reason how often the CPU reads or writes pixels. Thread-safe; O(1) per call.

    Reasons in use: ``draw`` (a software camera or a program writes its frame), ``decode`` (a
    recording's or a webcam's picture is decoded), ``tensor`` (an accelerator on the CPU reads the
    frame), ``to_ros`` and ``from_ros`` (conversion to and from ``sensor_msgs/Image``), ``debayer``
    (an extra pass over a Bayer frame), ``to_jpeg``, ``overlay``, ``masks``, ``record``,
    ``snapshot``, ``mend`` (a webcam's faulty JPEG is copied to mend it), ``gstreamer_copy`` (a
    GStreamer camera's frame is copied, because it isn't in a dma-buf), ``gstreamer`` (an element
    of ``gstreamer_node``'s pipeline reads the frame), ``unixfd_first`` (a frame with padded rows
    is copied for a GStreamer reader that has given no buffer back yet), ``bgr`` and ``copy`` (a
    program calls the frame's methods of these names).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, tuple[int, int]] = {}

    def book(self, reason: str, num_bytes: int) -> None:
        """Count one more time that the CPU reads or writes pixels, *num_bytes* bytes of them."""
        with self._lock:
            count, total = self._entries.get(reason, (0, 0))
            self._entries[reason] = (count + 1, total + num_bytes)

    def entries(self) -> dict[str, LedgerEntry]:
        """Return for each reason how often the CPU read or wrote pixels, and how many bytes."""
        with self._lock:
            return {reason: LedgerEntry(*entry) for reason, entry in self._entries.items()}

    def count(self, reason: str) -> int:
        """Return how often the CPU read or wrote pixels for *reason*."""
        with self._lock:
            return self._entries.get(reason, (0, 0))[0]


FRAME_COPIES = CopyLedger()
"""
Counts the bytes that ``frame.bgr()`` and ``frame.copy()`` copy in this process.

All subscriptions share this ledger, because a frame has no reference to its subscription.
"""
