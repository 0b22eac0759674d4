"""Draws a few frames of a timeline: one row per stage and per kind of kernel event, one colour per frame, time to the right.

``python -m zc_perception.observe.timeline_picture timeline.json timeline.png`` draws one that was stored.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.observe.timeline import BUFFERS, IMPORTS, JOBS, SIGNALS, WAITS
from zc_perception.observe.whole_file import write_whole

Colour = tuple[int, int, int]
# B, G, R; told apart by those who don't see red or green, too.
FRAME_COLOURS: tuple[Colour, ...] = (
    (178, 114, 0), (0, 94, 213), (115, 158, 0), (167, 121, 204), (0, 159, 230), (200, 160, 60), (60, 60, 120), (110, 150, 150),
)  # fmt: skip
#: Of frames that aren't among the chosen ones, and of events of no frame.
OTHER_COLOUR: Colour = (214, 214, 214)
STAGES = ('capture', 'deliver', 'link', 'import', 'infer', 'queue', 'decode', 'publish')
_TITLES = {
    'capture': 'capture',
    'deliver': 'deliver to all',
    'link': 'link',
    'import': 'import',
    'infer': 'infer',
    'queue': 'wait for turn',
    'decode': 'decode',
    'publish': 'publish boxes',
    JOBS: 'device jobs',
    IMPORTS: 'imports, releases',
    SIGNALS: 'fences',
    WAITS: 'fence waits',
    BUFFERS: 'attachments, maps',
}
_SCALE = 2
_INK, _FAINT, _GRID, _BAND, _WHITE = (50, 46, 42), (130, 124, 118), (226, 222, 218), (248, 246, 244), (255, 255, 255)
_LEFT, _RIGHT, _TOP, _BOTTOM = 216, 112, 84, 42
_GROUP_GAP = 26
_LEGEND_Y = 54
_SHORTEST_PX = 3
_LABEL_PX, _LABEL_HEIGHT = 46, 17
_FONT = cv2.FONT_HERSHEY_SIMPLEX


@dataclass(frozen=True)
class Row:
    """One row of the picture.

    :param category: of its events in the trace.
    :param top: y of its upper edge, in pixels of the finished picture.
    :param lanes: its tracks, from above; more than one where spans overlap.
    """

    pid: int
    category: str
    top: float
    height: float
    lanes: tuple[int, ...] = ()

    def bar(self, tid: int) -> tuple[float, float]:
        """Upper and lower edge of what is on a track."""
        inset = min(4.0, self.height * 0.16)
        height = (self.height - 2 * inset) / max(1, len(self.lanes))
        top = self.top + inset + height * (self.lanes.index(tid) if tid in self.lanes else 0)
        return top, top + height - (1 if len(self.lanes) > 1 else 0)


@dataclass(frozen=True)
class Plan:
    """What goes where, in pixels of the finished picture.

    :param frames: numbers of the chosen frames, in order; the n-th has the n-th of :data:`FRAME_COLOURS`.
    :param groups: processes: name and y of their first row.
    :param begin_us: time at :attr:`left`.
    :param end_us: time at :attr:`right`.
    """

    frames: tuple[int, ...]
    rows: tuple[Row, ...]
    groups: tuple[tuple[str, float], ...]
    begin_us: float
    end_us: float
    left: float
    right: float

    def x(self, time_us: float) -> float:
        """Where a time is."""
        return self.left + (time_us - self.begin_us) / (self.end_us - self.begin_us) * (self.right - self.left)

    def colour(self, frame: int | None) -> Colour:
        """Of a frame."""
        return FRAME_COLOURS[self.frames.index(frame) % len(FRAME_COLOURS)] if frame in self.frames else OTHER_COLOUR


def choose_frames(events: Sequence[Mapping[str, Any]], count: int) -> tuple[int, ...]:
    """*count* successive frames of one camera, each known from its capture to its detections: those that took together as long as is
    usual in this recording, nearest to its middle.

    :raises ValueError: there is none.
    """
    begun: dict[int, tuple[float, str]] = {}
    ended: dict[int, float] = {}
    for event in events:
        if event['ph'] == 'X' and event['cat'] == 'capture':
            begun[event['args']['frame']] = event['ts'], event['args']['node']
        elif event['ph'] == 'X' and event['cat'] == 'publish':
            ended[event['args']['frame']] = event['ts'] + event['dur']
    whole = sorted(frame for frame in begun if frame in ended)
    if not whole:
        raise ValueError('no frame is known from the camera to its detections; record capture and inference nodes at the same time, longer')
    camera = begun[whole[len(whole) // 2]][1]
    whole = [frame for frame in whole if begun[frame][1] == camera]
    count = min(count, len(whole))
    windows = [whole[first : first + count] for first in range(len(whole) - count + 1)]
    took_us = [max(map(ended.__getitem__, window)) - begun[window[0]][0] for window in windows]
    usual_us, middle = statistics.median_low(took_us), (len(windows) - 1) / 2
    first = min(range(len(windows)), key=lambda n: (round(abs(took_us[n] - usual_us) / 1000), abs(n - middle)))
    return tuple(windows[first])


def plan_picture(timeline: Mapping[str, Any], frames: int, size: tuple[int, int]) -> Plan:
    """Choose the frames and lay the rows out.

    :param size: width and height in pixels.
    :raises ValueError: no frame is known as a whole.
    """
    events: Sequence[Mapping[str, Any]] = timeline['traceEvents']
    chosen = choose_frames(events, frames)
    of_frames = [event for event in events if event['ph'] in 'Xi' and event['args'].get('frame') in chosen]
    spans = [event for event in of_frames if event['ph'] == 'X' and event['cat'] in STAGES]
    begin_us = min(event['ts'] for event in spans)
    end_us = max(event['ts'] + event['dur'] for event in spans)
    margin_us = 0.012 * (end_us - begin_us)
    present = {(event['pid'], event['cat']) for event in of_frames}
    names = {event['pid']: event['args']['name'] for event in events if event['ph'] == 'M' and event['name'] == 'process_name'}
    order = [*STAGES, JOBS, IMPORTS, SIGNALS, WAITS, BUFFERS]
    groups = [(pid, [category for category in order if (pid, category) in present]) for pid in names]
    groups = [(pid, categories) for pid, categories in groups if categories]
    width, height = size
    rows_in_all = sum(len(categories) for _, categories in groups)
    row_height = (height - _TOP - _BOTTOM - _GROUP_GAP * len(groups)) / rows_in_all
    rows: list[Row] = []
    titles: list[tuple[str, float]] = []
    top = float(_TOP)
    for pid, categories in groups:
        top += _GROUP_GAP
        kernel = any(category in (JOBS, IMPORTS, SIGNALS, WAITS, BUFFERS) for category in categories)
        titles.append((names[pid] if kernel else f'{names[pid]} (process {pid})', top))
        for category in categories:
            rows.append(Row(pid, category, top, row_height, _lanes(events, pid, category, begin_us, end_us)))
            top += row_height
    return Plan(chosen, tuple(rows), tuple(titles), begin_us - margin_us, end_us + margin_us, _LEFT, width - _RIGHT)


def _lanes(events: Sequence[Mapping[str, Any]], pid: int, category: str, begin_us: float, end_us: float) -> tuple[int, ...]:
    """The tracks that have spans of this category in that time."""
    found = {
        event['tid'] for event in events
        if event['ph'] == 'X' and (event['pid'], event['cat']) == (pid, category)
        and event['ts'] < end_us and event['ts'] + event['dur'] > begin_us
    }  # fmt: skip
    order = {(event['pid'], event['tid']): event['args']['sort_index'] for event in events if event['name'] == 'thread_sort_index'}
    return tuple(sorted(found, key=lambda tid: order[pid, tid]))


class _Canvas:
    """Twice as large as the picture, so that edges and letters are smooth."""

    def __init__(self, width: int, height: int) -> None:
        self.pixels: NDArray[np.uint8] = np.full((height * _SCALE, width * _SCALE, 3), 255, np.uint8)

    def rectangle(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        x, y = round(left * _SCALE), round(top * _SCALE)
        self.pixels[y : max(y + 1, round(bottom * _SCALE)), x : max(x + 1, round(right * _SCALE))] = colour

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: Colour) -> None:
        points = [(round(x * _SCALE), round(y * _SCALE)) for x, y in ((x1, y1), (x2, y2))]
        cv2.line(self.pixels, points[0], points[1], colour, 1, cv2.LINE_AA)

    def diamond(self, x: float, y: float, radius: float, colour: Colour) -> None:
        corners = [(x - radius, y), (x, y - radius), (x + radius, y), (x, y + radius)]
        points = np.array([(round(a * _SCALE), round(b * _SCALE)) for a, b in corners], np.int32)
        cv2.fillConvexPoly(self.pixels, points, colour, cv2.LINE_AA)

    def text_width(self, text: str, size: float) -> float:
        return float(cv2.getTextSize(text, _FONT, size * _SCALE / 22, 1)[0][0]) / _SCALE

    def text(self, x: float, y: float, text: str, size: float, colour: Colour, *, align: float = 0.0, bold: bool = False) -> None:
        """*y* is the middle of the letters; *align* 0: *x* is the left end, 0.5 the middle, 1 the right end."""
        x -= align * self.text_width(text, size)
        origin = round(x * _SCALE), round((y + 0.36 * size) * _SCALE)
        cv2.putText(self.pixels, text, origin, _FONT, size * _SCALE / 22, colour, 3 if bold else 2, cv2.LINE_AA)

    def finished(self) -> NDArray[np.uint8]:
        height, width = self.pixels.shape[:2]
        return np.asarray(cv2.resize(self.pixels, (width // _SCALE, height // _SCALE), interpolation=cv2.INTER_AREA), np.uint8)


def render_timeline(timeline: Mapping[str, Any], *, frames: int = 5, size: tuple[int, int] = (1400, 600)) -> NDArray[np.uint8]:
    """The picture, BGR.

    :param timeline: what :func:`build_timeline` returns.
    :param frames: successive ones, 1 to 8, from the middle of the recording.
    :param size: width and height in pixels.
    :raises ValueError: no frame is known from the camera to its detections.
    """
    if not 1 <= frames <= len(FRAME_COLOURS):
        raise ValueError(f'{frames} frames: 1 to {len(FRAME_COLOURS)} can be drawn in colours of their own')
    plan = plan_picture(timeline, frames, size)
    canvas = _Canvas(*size)
    _draw_frame_of_picture(canvas, plan, timeline, size[0])
    by_row = {(row.pid, row.category): row for row in plan.rows}
    drawn = [
        (event, by_row[event['pid'], event['cat']])
        for event in timeline['traceEvents']
        if event['ph'] in 'Xi' and (event['pid'], event['cat']) in by_row
        and event['ts'] + event.get('dur', 0.0) > plan.begin_us and event['ts'] < plan.end_us
    ]  # fmt: skip
    # The others first: what is of the chosen frames lies on top.
    drawn.sort(key=lambda pair: pair[0]['args'].get('frame') in plan.frames)
    for event, row in drawn:
        _draw_event(canvas, plan, event, row)
    _draw_medians(canvas, plan, timeline, size[0])
    return canvas.finished()


def _draw_frame_of_picture(canvas: _Canvas, plan: Plan, timeline: Mapping[str, Any], width: int) -> None:
    bottom = plan.rows[-1].top + plan.rows[-1].height
    for index, row in enumerate(plan.rows):
        if index % 2 == 0:
            canvas.rectangle(16, row.top, width - 16, row.top + row.height, _BAND)
    step_us = _step((plan.end_us - plan.begin_us) / 10)
    zero_us = plan.begin_us
    tick = 0
    while zero_us + tick * step_us <= plan.end_us:
        x = plan.x(zero_us + tick * step_us)
        canvas.line(x, _TOP + 4, x, bottom, _GRID)
        canvas.text(x, bottom + 13, f'{tick * step_us / 1000:g}', 11.5, _FAINT, align=0.5)
        tick += 1
    canvas.text(plan.right + 14, bottom + 13, 'ms', 11.5, _FAINT)
    other = timeline.get('otherData', {})
    count = len(plan.frames)
    title = f'{count} frames, from the camera to their detections' if count > 1 else 'One frame, from the camera to its detections'
    canvas.text(24, 28, title, 17, _INK, bold=True)
    said = [f'{what}{other[key]}' for key, what in (('kernel', 'Linux '), ('machine', ''), ('date', '')) if other.get(key)]
    canvas.text(24, 54, ', '.join(said) if said else 'CLOCK_MONOTONIC, the same in every process', 12, _FAINT)
    canvas.text(width - 20, _TOP + 12, 'median', 11.5, _FAINT, align=1.0)
    for name, top in plan.groups:
        canvas.text(24, top - 10, name, 12.5, _INK, bold=True)
    for row in plan.rows:
        canvas.text(34, row.top + row.height / 2, _TITLES[row.category], 12.5, _INK)
    _draw_legend(canvas, plan, timeline, width)


def _draw_legend(canvas: _Canvas, plan: Plan, timeline: Mapping[str, Any], width: int) -> None:
    sequences = {event['args']['frame']: event['args']['sequence'] for event in timeline['traceEvents']
                 if event['ph'] == 'X' and event['args'].get('frame') in plan.frames}  # fmt: skip
    names = [(str(sequences[frame]), plan.colour(frame)) for frame in plan.frames] + [('others', OTHER_COLOUR)]
    x = width - 20.0
    for text, colour in reversed(names):
        x -= canvas.text_width(text, 12.5)
        canvas.text(x, _LEGEND_Y, text, 12.5, _INK)
        x -= 20
        canvas.rectangle(x, _LEGEND_Y - 7, x + 14, _LEGEND_Y + 7, colour)
        x -= 16
    canvas.text(x, _LEGEND_Y, 'frame', 12.5, _INK, align=1.0)


def _draw_event(canvas: _Canvas, plan: Plan, event: Mapping[str, Any], row: Row) -> None:
    colour = plan.colour(event['args'].get('frame'))
    if event['ph'] == 'i':
        x = plan.x(event['ts'])
        radius = min(5.0, row.height / 3)
        if plan.left <= x <= plan.right:
            canvas.diamond(x, row.top + row.height / 2, radius, colour)
        return
    left = max(plan.left, plan.x(event['ts']))
    right = min(plan.right, max(plan.x(event['ts'] + event['dur']), left + _SHORTEST_PX))
    top, bottom = row.bar(event['tid'])
    canvas.rectangle(left, top, right, bottom, colour)
    text = _duration(event['dur'])
    roomy = bottom - top >= _LABEL_HEIGHT and right - left > max(_LABEL_PX, canvas.text_width(text, 11) + 10)
    if colour != OTHER_COLOUR and roomy:
        canvas.text((left + right) / 2, (top + bottom) / 2, text, 11, _WHITE if _is_dark(colour) else _INK, align=0.5)


def _draw_medians(canvas: _Canvas, plan: Plan, timeline: Mapping[str, Any], width: int) -> None:
    """Over the whole recording, not only the frames that are drawn."""
    durations: dict[tuple[int, str], list[float]] = {}
    for event in timeline['traceEvents']:
        if event['ph'] == 'X':
            durations.setdefault((event['pid'], event['cat']), []).append(event['dur'])
    for row in plan.rows:
        values = durations.get((row.pid, row.category))
        if values:
            canvas.text(width - 20, row.top + row.height / 2, _duration(statistics.median(values)), 12, _INK, align=1.0)


def _is_dark(colour: Colour) -> bool:
    blue, green, red = colour
    return 0.114 * blue + 0.587 * green + 0.299 * red < 140


def _duration(us: float) -> str:
    """Three digits, more or less."""
    if us < 1000:
        return f'{us:.0f} us'
    if us < 1e6:
        return f'{us / 1000:.2f} ms' if us < 10_000 else f'{us / 1000:.1f} ms'
    return f'{us / 1e6:.2f} s'


def _step(about_us: float) -> float:
    """The next larger round number."""
    power = 10.0 ** np.floor(np.log10(about_us))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= about_us))


def draw_timeline(timeline: Mapping[str, Any], path: Path, *, frames: int = 5, size: tuple[int, int] = (1400, 600)) -> None:
    """Write the picture as PNG; see :func:`render_timeline` and :func:`write_whole`.

    :raises ValueError: no frame is known from the camera to its detections.
    :raises OSError: the file can't be written.
    """
    encoded = cv2.imencode('.png', render_timeline(timeline, frames=frames, size=size))[1]
    write_whole(path, encoded.tobytes())


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog='python -m zc_perception.observe.timeline_picture', description=(__doc__ or '').split('\n')[0])
    parser.add_argument('timeline', type=Path, help='timeline.json, as zc_verify writes it')
    parser.add_argument('picture', type=Path, help='the PNG to write')
    parser.add_argument('--frames', type=int, default=5, help='successive frames (default 5)')
    given = parser.parse_args(arguments)
    try:
        draw_timeline(json.loads(given.timeline.read_text(encoding='utf-8')), given.picture, frames=given.frames)
    except (OSError, ValueError, KeyError) as error:
        parser.error(f'{given.timeline}: {error}')


if __name__ == '__main__':
    main()
