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

"""Account for a fault's frames, by the camera's log and the witness; check the bystanders."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

WITNESS, INFERENCE = 'witness', 'inference'
"""Who may stand by; see :class:`~faults.harness.Fault`."""
MOST_PAUSE_S = 1.0
"""How long a bystander may be without a frame, besides the time that nothing ran.

Two shared processors may keep any process from running."""
LEAST_RATE = 0.5
"""The share of the camera's frames that it must publish.

A camera that starves publishes less and loses nothing."""


@dataclass
class Stretch:
    """
    Frames of one connection and one pool of the camera.

    :ivar connection: number of connections so far, without those to forgotten cameras.
    :ivar pool: the upper half of its frames' ``buffer_uid``, which no other pool has.
    :ivar captured: capture time of each received frame.
    :ivar dropped: frames that the link dropped after *first_ns* and before the last frame.
    """

    first_ns: int
    dropped_before: int
    connection: int
    pool: int
    last_ns: int = 0
    captured: list[int] = field(default_factory=list)
    dropped: int = 0
    sequence: int = -1

    def continued(self) -> Stretch:
        """Return an empty stretch that starts after this one's last frame."""
        before = self.dropped_before + self.dropped
        return Stretch(
            self.last_ns + 1,
            before,
            self.connection,
            self.pool,
            self.last_ns,
            sequence=self.sequence,
        )


@dataclass(frozen=True)
class Tally:
    """
    The counted frames of one fault.

    :ivar came: published frames.
    :ivar received: published frames that the witness received.
    :ivar newest_wins: frames that the link dropped because the witness was too slow.
    :ivar not_connected: frames between two connections of the witness, when the camera was gone or
        had new buffers.
    :ivar span_s: seconds from the first to the last frame.
    """

    came: int
    received: int
    newest_wins: int
    not_connected: int
    span_s: float


def tally(stretches: Sequence[Stretch], published: Collection[int]) -> Tally:
    """
    Count from the last frame before the fault to the last frame of all.

    :param stretches: at least one; the first continues the state before the fault.
    :param published: capture time of each frame in the camera's log.
    """
    first_ns, last_ns = stretches[0].first_ns, stretches[-1].last_ns
    received = {captured for stretch in stretches for captured in stretch.captured}
    # A process may be killed after publishing a frame and before logging it.
    came = {captured for captured in received.union(published) if first_ns <= captured <= last_ns}
    seen = sum(
        any(stretch.first_ns <= captured <= stretch.last_ns for stretch in stretches)
        for captured in came
    )
    dropped = sum(stretch.dropped for stretch in stretches)
    return Tally(
        len(came), len(received), dropped, len(came) - seen, max(0, last_ns - first_ns) / 1e9
    )


def noticed(
    bystanders: Collection[str],
    frames: Tally,
    framerate: float,
    no_slot: int,
    pause_s: float,
    detection_pause_s: float,
    stalled_s: float = 0.0,
) -> dict[str, int]:
    """
    Return counts that must be zero if *bystanders* are not affected by a fault.

    :param no_slot: frames that the camera dropped because no slot was free.
    :param pause_s: the longest pause of the witness's frames.
    :param detection_pause_s: the longest pause of the detections.
    :param stalled_s: time in which no process ran, so none published.
    """
    found = {}
    if WITNESS in bystanders:
        found['frames that the witness was too slow for'] = frames.newest_wins
        found['frames while the witness was not connected'] = frames.not_connected
        found['frames without a free slot'] = no_slot
        found[f'pauses of frames over {MOST_PAUSE_S:g} s'] = int(pause_s > MOST_PAUSE_S)
        least = LEAST_RATE * framerate * (frames.span_s - stalled_s)
        found[f'cameras that published less than {LEAST_RATE:.0%}'] = int(frames.came < least)
    if INFERENCE in bystanders:
        found[f'pauses of detections over {MOST_PAUSE_S:g} s'] = int(
            detection_pause_s > MOST_PAUSE_S
        )
    return found
