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
What a capture node has in addition as one side of a stereo pair.

That is: the rule of its parameters, and what becomes of its frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zc_perception.camera.camera import Camera
from zc_perception.camera.kinds import CAMERAS
from zc_perception.camera.stereo import PairingRule, Side, SideCamera, StereoSides
from zc_perception.errors import ConfigError
from zc_perception.observe.diagnostics import Part, Row, Status, WARN

STEREO = Part(
    'stereo',
    Row(lambda s: not s.present, WARN, ('the {other} camera is not open: no frame has a '
                                        'counterpart, none is published'),
        'see part camera of the {other} node'),
    Row(lambda s: not s.paired and s.silent, WARN, 'frames of the {other} camera do not come',
        'look at its cable and power, and at its trigger'),
    Row(lambda s: not s.paired, WARN, ('frames come {apart_ms:.1f} ms apart, the tolerance is '
                                       '{tolerance}'),
        'trigger the cameras together or raise stereo_tolerance'),
    well='{pairs} pairs',
)  # fmt: skip


class StereoRig:
    """
    The pairing of two capture nodes.

    The first one's parameters say how they pair, and the second one's must say the same.
    """

    def __init__(self) -> None:
        self._sides: StereoSides | None = None
        self._begun: set[Side] = set()

    @property
    def sides(self) -> StereoSides:
        """Return what pairs the frames, once a side has begun."""
        if self._sides is None:
            raise ConfigError('stereo: no side has begun')
        return self._sides

    def settle(self, side: Side, rule: PairingRule) -> None:
        """
        Note that a side wants to pair by *rule*.

        :raises ConfigError: the other side wants another rule.
        """
        if self._sides is None:
            self._sides = StereoSides(rule)
        self._sides.rule.check_same(rule)
        self._begun.add(side)

    def end(self, side: Side) -> None:
        """
        Note that a side has ended; after both the rule may change.

        Idempotent.
        """
        self._begun.discard(side)
        if not self._begun:
            self._sides = None


class StereoSide:
    """One capture node's part in a pair."""

    def __init__(self, rig: StereoRig, side: Side) -> None:
        self._rig = rig
        self.side = side
        self._seen = (0, 0)
        self._paired = True

    def begin(self, node: str, parameters: Mapping[str, Any]) -> None:
        """
        Take the pairing from a node's *parameters*.

        :raises ConfigError: they don't suit a pair, or the other side's; names *node*.
        """
        kind = CAMERAS.load(parameters['camera'])
        by_stamp = kind.recorded_stamps(parameters)
        try:
            if kind.keeps_all(parameters):
                raise ConfigError(
                    "parameter 'keep_all' is true; frames become pairs by the time at which "
                    'they come, set it to false'
                )
            self._rig.settle(
                self.side, PairingRule(round(parameters['stereo_tolerance'] * 1e9), by_stamp)
            )
        except ConfigError as error:
            raise ConfigError(f"node '{node}': {error}") from None

    def end(self) -> None:
        """
        End the side's part: the node is cleaned up.

        Idempotent.
        """
        self._rig.end(self.side)
        self._seen = (0, 0)
        self._paired = True

    def join(self, camera: Camera) -> SideCamera:
        """Return a camera that gives only frames with a counterpart."""
        return self._rig.sides.join(self.side, camera)

    def status(self) -> Status:
        """Report pairs and frames without a counterpart, of both sides, and whether pairs come."""
        sides, other = self._rig.sides, self.side.other.value
        found = sides.statistics()
        alone = dict(found.alone)
        tolerance = f'{sides.rule.tolerance_ns / 1e6:g} ms'
        values: dict[str, object] = {
            'side': self.side.value,
            'pairs': found.pairs,
            'unmatched_left': alone[Side.LEFT],
            'unmatched_right': alone[Side.RIGHT],
            'tolerance': tolerance,
            'difference_ns': found.difference_ns,
            'max_difference_ns': found.max_difference_ns,
            'restarts': found.restarts,
        }
        (pairs, dropped), self._seen = self._seen, (found.pairs, found.dropped)
        # Keep the latest answer until a pair or a dropped frame gives a new one.
        if found.pairs > pairs or found.dropped > dropped:
            self._paired = found.pairs > pairs
        apart_ns = found.apart_ns
        return STEREO.status(
            values,
            present=sides.present(self.side.other),
            other=other,
            paired=self._paired,
            pairs=found.pairs,
            silent=apart_ns is None or apart_ns <= sides.rule.tolerance_ns,
            apart_ms=(apart_ns or 0) / 1e6,
            tolerance=tolerance,
        )
