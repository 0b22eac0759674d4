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
The copy ledger: every place that touches pixels with the CPU books the bytes here.

Each booking has a reason. The ledger is the package's own claim; the verification checks this
claim from outside. It lies in this folder, not in ``observe/``, because cameras and accelerators
book into it and may not import from the higher folders.
"""

from __future__ import annotations

from dataclasses import dataclass
import threading


@dataclass(frozen=True)
class LedgerEntry:
    """What has been booked under one reason: how often, and how many bytes."""

    count: int
    bytes: int  # noqa: A003


class CopyLedger:
    """
    Counts passes of the CPU over pixels, by reason.

    Thread-safe; O(1) per booking.

    Reasons in use: ``draw`` and ``decode`` (a camera made of software writes its frame, as a
    program that publishes its own does, or the JPEG of a webcam is decoded), ``tensor`` (an
    accelerator on the CPU reads it), ``to_ros`` and ``from_ros`` (conversion from and to
    ``sensor_msgs/Image``), ``debayer`` (one pass more for Bayer), ``to_jpeg``,
    ``overlay``, ``masks``, ``record``, ``snapshot``, ``gstreamer`` (an element of
    ``gstreamer_node``'s pipeline reads it), ``unixfd_first`` (padded rows, until GStreamer looks
    where they lie), ``bgr`` and ``copy``
    (what a program asks a frame for).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, tuple[int, int]] = {}

    def book(self, reason: str, num_bytes: int) -> None:
        """Book one pass over *num_bytes* bytes of pixels."""
        with self._lock:
            count, total = self._entries.get(reason, (0, 0))
            self._entries[reason] = (count + 1, total + num_bytes)

    def entries(self) -> dict[str, LedgerEntry]:
        """Return what has been booked, by reason."""
        with self._lock:
            return {reason: LedgerEntry(*entry) for reason, entry in self._entries.items()}

    def count(self, reason: str) -> int:
        """Return how often *reason* was booked."""
        with self._lock:
            return self._entries.get(reason, (0, 0))[0]


FRAME_COPIES = CopyLedger()
"""
Counts what ``frame.bgr()`` and ``frame.copy()`` copy in this process.

There is one for all subscriptions, because a frame doesn't know by which one it came.
"""
