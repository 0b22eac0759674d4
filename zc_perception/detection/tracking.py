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
Give an object the same number from frame to frame: :class:`Tracking`.

Parameter ``tracking`` chooses the method. ``bytetrack`` predicts where each track's box is in a
new frame, assuming constant velocity. First it matches these predictions with the boxes whose
score is high. Then it matches the remaining tracks with the boxes whose score is low, so an object
whose score falls for some frames keeps its number.

Sources: Zhang et al., ByteTrack, ECCV 2022; the Kalman filter's noise is that of Bewley et al.,
SORT, ICIP 2016.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.parameters import ParameterSpec

NONE, BYTETRACK = 'none', 'bytetrack'
PARAMETERS = (
    ParameterSpec('tracking', NONE, ("bytetrack: the id of an object's detections is a number "
                                     'that stays the same in every frame. none: no ids.'),
                  choices=(NONE, BYTETRACK), dynamic=True),
    ParameterSpec('track_score', 0.5, ('tracking: a detection needs at least this score to begin '
                                       'a track; with a lower one it can only continue a track.'),
                  '', 0.0, 1.0, dynamic=True),
    ParameterSpec('track_iou', 0.2, ('tracking: a detection continues a track if it overlaps '
                                     "the track's expected box at least this much."), 'IoU',
                  0.01, 1.0, dynamic=True),
    ParameterSpec('track_lost', 1.0, ('tracking: an object that was not seen for longer than '
                                      'this gets a new number.'), 's', 0.0, 60.0,
                  dynamic=True),
)  # fmt: skip
"""The inference node's parameters for tracking."""
# Standard deviations, as shares of the box's height: _POSITION is that of the box's position, and
# _VELOCITY is that of the distance that the box moves in _STEP_S seconds.
_POSITION, _VELOCITY, _STEP_S = 1 / 20, 1 / 160, 1 / 30
# A new track is less certain: multiply its standard deviations by these factors.
_NEW_POSITION, _NEW_VELOCITY = 2.0, 10.0
Boxes = NDArray[np.float64]


@dataclass(frozen=True)
class _Settings:
    score: float
    iou: float
    lost_ns: int


@dataclass(eq=False)
class _Tracks:
    """
    The state of all tracks.

    Each of a box's four numbers has its own Kalman filter. Its state is place and speed; its
    covariances are ``pp``, ``pv`` and ``vv``.

    :param seen: the stamp in ns of the last frame that had a box of the track.
    :param place: (n, 4) centre x, y, width and height in pixels.
    :param speed: (n, 4) the change of *place* per second.
    """

    ids: NDArray[np.int64]
    classes: NDArray[np.intp]
    seen: NDArray[np.int64]
    place: Boxes
    speed: Boxes
    pp: Boxes
    pv: Boxes
    vv: Boxes

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def begin(
        cls, ids: NDArray[np.int64], classes: NDArray[np.intp], now: int, measured: Boxes
    ) -> _Tracks:
        noise = np.repeat(measured[:, 3:] ** 2, 4, axis=1)
        zeros = np.zeros_like(measured)
        return cls(
            ids, classes, np.full(len(ids), now), measured, zeros,
            noise * (_NEW_POSITION * _POSITION) ** 2, zeros.copy(),
            noise * (_NEW_VELOCITY * _VELOCITY / _STEP_S) ** 2,
        )  # fmt: skip

    def chosen(self, which: NDArray[Any]) -> _Tracks:
        return _Tracks(*(values[which] for values in vars(self).values()))

    def and_also(self, others: _Tracks) -> _Tracks:
        pairs = zip(vars(self).values(), vars(others).values(), strict=True)
        return _Tracks(*(np.concatenate(pair) for pair in pairs))

    def predict(self, seconds: float) -> None:
        noise = self.place[:, 3:] ** 2 * (seconds / _STEP_S)
        self.place += self.speed * seconds
        np.maximum(self.place[:, 2:], 1.0, out=self.place[:, 2:])
        self.pp += seconds * (2 * self.pv + seconds * self.vv) + noise * _POSITION**2
        self.pv += seconds * self.vv
        self.vv += noise * (_VELOCITY / _STEP_S) ** 2

    def correct(self, which: NDArray[np.intp], measured: Boxes, now: int) -> None:
        noise = (_POSITION * self.place[which, 3:]) ** 2
        pp, pv = self.pp[which], self.pv[which]
        to_place, to_speed = pp / (pp + noise), pv / (pp + noise)
        off = measured - self.place[which]
        self.place[which] += to_place * off
        self.speed[which] += to_speed * off
        self.pp[which] -= to_place * pp
        self.vv[which] -= to_speed * pv
        self.pv[which] -= to_place * pv
        self.seen[which] = now


class Tracking:
    """
    Give each object a number, from 1 on; a tracker never uses a number twice.

    One thread calls the tracker; any thread may call :meth:`tune`.

    All tracks end if a frame's stamp is earlier than the previous one, or later by more than
    ``track_lost``, or if the frame size changes.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._settings: _Settings | None = None
        self._tracks: _Tracks | None = None
        self._last = (0, (0, 0))
        self.begun = 0
        self.tune(values)

    def tune(self, values: Mapping[str, Any]) -> None:
        """Use new values of the parameters from the next frame on; existing tracks stay."""
        self._settings = (
            None
            if values['tracking'] == NONE
            else _Settings(
                values['track_score'], values['track_iou'], round(values['track_lost'] * 1e9)
            )
        )

    @property
    def live(self) -> int:
        """The number of tracks that may still be matched."""
        tracks = self._tracks
        return 0 if tracks is None else len(tracks)

    def __call__(self, found: Detections, stamp_ns: int, size: tuple[int, int]) -> Detections:
        """Return *found*, with ids if tracking is on; *size* is the frame's width and height."""
        settings = self._settings
        if settings is None:
            self._tracks = None
            return found
        before, its_size = self._last
        self._last = stamp_ns, size
        tracks = self._tracks
        if tracks is not None and len(tracks):
            if not 0 <= stamp_ns - before <= settings.lost_ns or size != its_size:
                tracks = None
            else:
                tracks = tracks.chosen(stamp_ns - tracks.seen <= settings.lost_ns)
                # Keep the size of a track that had no box in the previous frame. Before that
                # frame, another object may have covered a part of the track's object, so that the
                # track's boxes shrank; predicted sizes would shrink further.
                tracks.speed[tracks.seen != before, 2:] = 0.0
                tracks.predict((stamp_ns - before) / 1e9)
        ids = np.zeros(len(found), np.int64)
        if len(found):
            tracks = self._match(tracks, found, ids, stamp_ns, settings)
        self._tracks = tracks
        return replace(found, ids=ids)

    def _match(
        self,
        tracks: _Tracks | None,
        found: Detections,
        ids: NDArray[np.int64],
        now: int,
        settings: _Settings,
    ) -> _Tracks | None:
        boxes = found.boxes.astype(np.float64)
        measured = np.concatenate(
            ((boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]), axis=1
        )
        high = found.scores >= settings.score
        if tracks is not None and len(tracks):
            overlaps = _overlaps(tracks.place, measured)
            overlaps[tracks.classes[:, None] != found.classes] = 0.0
            first = _pairs(np.where(high, overlaps, 0.0), settings.iou)
            overlaps[first[0]] = 0.0
            overlaps[:, high] = 0.0
            # A box with a low score may continue only the tracks that were seen last: those with
            # the newest stamp in ``seen``. To continue another track, a box needs a high score.
            overlaps[tracks.seen < tracks.seen.max()] = 0.0
            rows, columns = np.concatenate((first, _pairs(overlaps, settings.iou)), axis=1)
            tracks.correct(rows, measured[columns], now)
            ids[columns] = tracks.ids[rows]
        new = np.flatnonzero(high & (ids == 0))
        if len(new):
            ids[new] = np.arange(self.begun + 1, self.begun + 1 + len(new))
            self.begun += len(new)
            begun = _Tracks.begin(ids[new], found.classes[new], now, measured[new])
            tracks = begun if tracks is None else tracks.and_also(begun)
        return tracks


def _overlaps(a: Boxes, b: Boxes) -> Boxes:
    """Return the IoU (n, m) of boxes (n, 4) with boxes (m, 4), all given as centre and size."""
    inside: Any = 1.0
    for axis in (0, 1):
        one, other = a[:, axis + 2, None], b[:, axis + 2]
        shared = (one + other) * 0.5
        shared -= np.abs(a[:, axis, None] - b[:, axis])
        np.minimum(shared, np.minimum(one, other), out=shared)
        inside = np.maximum(shared, 0.0, out=shared) * inside
    overlaps: Boxes = inside / ((a[:, 2] * a[:, 3])[:, None] + b[:, 2] * b[:, 3] - inside)
    return overlaps


def _pairs(overlaps: Boxes, least: float) -> NDArray[np.intp]:
    """
    Match rows with columns; return (2, k): the row and the column of each pair.

    Pairs are chosen from the largest overlap down to *least*; each row and column is used once.
    """
    rows, columns = np.nonzero(overlaps >= least)
    order = np.argsort(-overlaps[rows, columns], kind='stable')
    taken_rows: set[int] = set()
    taken_columns: set[int] = set()
    chosen = []
    for at, row, column in zip(
        order.tolist(), rows[order].tolist(), columns[order].tolist(), strict=True
    ):
        if row not in taken_rows and column not in taken_columns:
            taken_rows.add(row)
            taken_columns.add(column)
            chosen.append(at)
    return np.stack((rows[chosen], columns[chosen]))
