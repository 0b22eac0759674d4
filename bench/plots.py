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

"""Draw pictures of the results with Matplotlib, which is imported only when a picture is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TYPE_CHECKING

from bench.link import LINKS, PLAIN, READ
from bench.peers.processes import VARIANTS as PEERS
from bench.results import Bench, duration, leading_number, size_name
from bench.rows import Row
from bench.worker import BenchError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 130
_GREY = '#8a8a8a'
# Colour and marker of each variant. The package's own links are blue. Each rival library has
# another colour, and colour-blind readers can tell them apart.
_STYLES: dict[str, tuple[str, str]] = {
    'shared_memory': ('#0b5fa5', 'o'),
    'in_process_mailbox': ('#4fa3e3', 'o'),
    'in_process_executor': ('#9cc9ee', 'o'),
    'iceoryx2_in_place': ('#117733', '^'),
    'iceoryx2_copy': ('#7ab648', '^'),
    'zenoh_shared_memory': ('#aa4499', 's'),
    'zenoh': ('#d9a3d0', 's'),
    'cyclonedds': ('#e08a1e', 'D'),
    'rclpy_image_tuned': ('#c0392b', 'v'),
    'rclpy_image_default': ('#e59b93', 'v'),
    'fd_socket': (_GREY, 'x'),
}
_ORDER = (*LINKS[::-1], *reversed(PEERS), *PLAIN[::-1])
_STAGES = {
    'capture_us': '#4fa3e3',
    'link_us': '#0b5fa5',
    'decode_us': '#e08a1e',
    'publish_us': '#7ab648',
}


class PlotsAbsentError(BenchError):
    """Matplotlib isn't installed."""


def _figure(
    width: float, height: float, columns: int = 1, **options: Any
) -> tuple[Figure, list[Any]]:
    try:
        # Not pyplot, which needs a display and keeps global state.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotsAbsentError('Matplotlib is not installed: pip install matplotlib') from error
    figure = Figure(figsize=(width, height), dpi=_DPI, layout='constrained')
    axes = figure.subplots(1, columns, squeeze=False, **options)[0]
    for axis in axes:
        axis.spines[['top', 'right']].set_visible(False)
        axis.grid(True, which='major', alpha=0.3)
        axis.set_axisbelow(True)
    return figure, list(axes)


def _durations(axis: Any) -> None:
    """Label a logarithmic axis of µs; one of two decades or less also gets ticks at 2 and 5."""
    from matplotlib.ticker import LogLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
    axis.set_major_formatter(lambda value, _: duration(value))
    axis.set_minor_formatter(lambda value, _: '')


def _rows(bench: Bench, case: str, rate_hz: float | None = None) -> list[Row]:
    return [
        row
        for row in bench.rows
        if row.case == case and (rate_hz is None or row.rate_hz == rate_hz) and row.median_us
    ]


def _latency(bench: Bench) -> Figure | None:
    """
    Draw the latency over a frame's size; both axes are logarithmic.

    A line of slope one means that the pixels are copied; a horizontal line means no copy.
    """
    rates = sorted({row.rate_hz for row in _rows(bench, 'link')})
    if not rates:
        return None
    figure, axes = _figure(6.2 * len(rates) + 1.6, 5.4, len(rates), sharey=True)
    for axis, rate in zip(axes, rates, strict=True):
        sizes = sorted({(row.width, row.height) for row in _rows(bench, 'link', rate)})
        for variant in ('fd_socket', *_ORDER):
            rows = sorted(
                _rows(bench, 'floor' if variant == 'fd_socket' else 'link', rate),
                key=lambda row: row.width,
            )
            points = [
                (row.width * row.height * 1.5e-6, row.median_us)
                for row in rows
                if row.variant == variant
            ]
            colour, marker = _STYLES[variant]
            if points:
                ours = variant in LINKS
                axis.plot(
                    *zip(*points, strict=True), color=colour, marker=marker,
                    linewidth=2.6 if ours else 1.5, markersize=6,
                    linestyle='--' if variant == 'fd_socket' else '-', zorder=3 if ours else 2,
                    label='floor: bare descriptor' if variant == 'fd_socket' else variant,
                )  # fmt: skip
        axis.set(
            xscale='log',
            yscale='log',
            title=f'at {rate:g} Hz' if rate else 'unthrottled, one frame in flight',
        )
        axis.set_xticks(
            [width * height * 1.5e-6 for width, height in sizes],
            [size_name(size) for size in sizes],
        )
        axis.set_xticks([], minor=True)
        axis.set_xlabel('NV12 frame')
        _durations(axis.yaxis)
    axes[0].set_ylabel('median: publish → view of all pixels')
    # The legend has the order of the lines' right ends, from top to bottom.
    lines = sorted(axes[0].get_lines(), key=lambda line: -line.get_ydata()[-1])
    figure.legend(
        lines, [line.get_label() for line in lines], loc='outside right center', frameon=False
    )
    figure.suptitle('Handing over a frame')
    return figure


def _bars(
    axis: Any,
    names: Sequence[str],
    values: Sequence[float],
    colours: Sequence[str],
    text: Callable[[float], str],
) -> None:
    axis.barh(range(len(names)), values, color=colours)
    axis.set_yticks(range(len(names)), names)
    axis.set(xscale='log', xlim=(min(values) / 2, max(values) * 5))
    axis.grid(False, axis='y')
    for index, value in enumerate(values):
        axis.text(value * 1.08, index, text(value), va='center', fontsize=9)


def _cpu(bench: Bench) -> Figure | None:
    rows = _rows(bench, 'link')
    rates = sorted({row.rate_hz for row in rows})
    sizes = sorted({(row.width, row.height) for row in rows})
    if not rates:
        return None
    size = (1920, 1080) if (1920, 1080) in sizes else sizes[-1]
    figure, axes = _figure(5.6 * len(rates), 4.4, len(rates), sharey=True)
    for axis, rate in zip(axes, rates, strict=True):
        found = {
            row.variant: row.cpu_us_per_frame
            for row in rows
            if row.rate_hz == rate and (row.width, row.height) == size
        }
        named = [(name, value) for name in reversed(_ORDER) if (value := found.get(name))]
        if named:
            names, values = zip(*named, strict=True)
            _bars(axis, names, values, [_STYLES[name][0] for name in names], duration)
        axis.set(
            title=f'at {rate:g} Hz' if rate else 'unthrottled',
            xlabel='CPU time per frame, both processes',
        )
        _durations(axis.xaxis)
    figure.suptitle(f'CPU time of handing over a {size_name(size)} frame')
    return figure


def _read(bench: Bench) -> Figure | None:
    """Draw the latency with a consumer that reads every pixel, and with one that reads a few."""
    rows = _rows(bench, READ)
    sizes = sorted({(row.width, row.height) for row in rows})
    if not sizes:
        return None
    size = (1920, 1080) if (1920, 1080) in sizes else sizes[-1]
    read = {row.variant: row.median_us for row in rows if (row.width, row.height) == size}
    view = {
        row.variant: row.median_us
        for row in _rows(bench, 'link', 0.0)
        if (row.width, row.height) == size
    }
    figure, (axis,) = _figure(8.5, 4.4)
    names = [name for name in reversed(_ORDER) if name in read]
    for offset, values, alpha, label in (
        (-0.2, read, 1.0, 'every pixel read'),
        (0.2, view, 0.45, 'view of all pixels'),
    ):
        places = [index + offset for index, name in enumerate(names) if name in values]
        shown = [values[name] or 0.0 for name in names if name in values]
        axis.barh(
            places,
            shown,
            height=0.38,
            color=[_STYLES[name][0] for name in names if name in values],
            alpha=alpha,
            label=label,
        )
        for place, value in zip(places, shown, strict=True):
            axis.text(
                value * 1.06,
                place,
                f'{duration(value)}{" read" if alpha == 1.0 else ""}',
                va='center',
                fontsize=8.5,
            )
    axis.set_yticks(range(len(names)), names)
    axis.set(
        xscale='log',
        xlabel='median from publish (dark: until every pixel is read, light: until they can be)',
    )
    axis.set_xlim(right=axis.get_xlim()[1] * 3)
    axis.grid(False, axis='y')
    _durations(axis.xaxis)
    figure.suptitle(f'{size_name(size)}, unthrottled, with a consumer that reads every pixel')
    return figure


def _pipeline(bench: Bench) -> Figure | None:
    """Draw the stages of a frame from capture to published detections, without the accelerator."""
    rows = [row for row in _rows(bench, 'pipeline') if row.figures.keys() & _STAGES.keys()]
    if not rows:
        return None
    figure, (axis,) = _figure(9, 1.6 + 0.55 * len(rows))
    names = []
    for index, row in enumerate(reversed(rows)):
        rate = f'{row.rate_hz:g} Hz' if row.rate_hz else 'unthrottled'
        names.append(
            f'{row.variant.replace("_", " ")} {size_name((row.width, row.height))}, {rate}'
        )
        left = 0.0
        for stage, colour in _STAGES.items():
            value = row.figures.get(stage, 0.0)
            axis.barh(
                index,
                value,
                left=left,
                color=colour,
                label=stage.removesuffix('_us') if index == 0 else None,
            )
            left += value
        axis.text(left, index, f' {duration(left)}', va='center', fontsize=9)
    axis.set_yticks(range(len(rows)), names)
    axis.set_xlabel('medians of the stages, without the accelerator')
    axis.xaxis.set_major_formatter(lambda value, _: duration(value))
    axis.set_xlim(right=axis.get_xlim()[1] * 1.1)
    axis.grid(False, axis='y')
    figure.legend(loc='outside upper right', ncols=len(_STAGES), frameon=False)
    figure.suptitle('Where the time of a frame goes', x=0.02, ha='left')
    return figure


def _scale(bench: Bench) -> Figure | None:
    rows = [row for row in _rows(bench, 'scale') if leading_number(row.variant)]
    groups = sorted({(row.width, row.height, row.rate_hz) for row in rows})
    if not groups:
        return None
    figure, (latency, cpu) = _figure(11, 4.4, 2)
    for index, (width, height, rate) in enumerate(groups):
        chosen = sorted(
            (row for row in rows if (row.width, row.height, row.rate_hz) == (width, height, rate)),
            key=lambda row: leading_number(row.variant),
        )
        colour = list(_STYLES.values())[index % len(_STYLES)][0]
        cameras = [leading_number(row.variant) for row in chosen]
        label = f'{size_name((width, height))} {rate:g} Hz'
        latency.plot(
            cameras,
            [row.p99_us for row in chosen],
            color=colour,
            marker='o',
            label=f'{label}, p99',
        )
        latency.plot(
            cameras,
            [row.median_us for row in chosen],
            color=colour,
            marker='o',
            alpha=0.45,
            label=f'{label}, median',
        )
        cpu.plot(
            cameras,
            [row.figures.get('process_percent', 0.0) for row in chosen],
            color=colour,
            marker='o',
            label=label,
        )
        for axis, values in (
            (latency, [row.p99_us for row in chosen]),
            (cpu, [row.figures.get('process_percent', 0.0) for row in chosen]),
        ):
            lossy = [
                (n, value)
                for n, value, row in zip(cameras, values, chosen, strict=True)
                if row.lost_per_cent
            ]
            if lossy:
                axis.plot(
                    *zip(*lossy, strict=True),
                    'X',
                    color='#c0392b',
                    markersize=11,
                    linestyle='none',
                    label='frames lost',
                )
    latency.set(yscale='log', xlabel='cameras', ylabel='capture → published detections')
    _durations(latency.yaxis)
    cpu.set(xlabel='cameras', ylabel='CPU use of the process in % of one CPU', ylim=(0, None))
    for axis in (latency, cpu):
        axis.set_xticks(sorted({leading_number(row.variant) for row in rows}))
        axis.legend(frameon=False)
    figure.suptitle('How many cameras one process takes')
    return figure


def _startup(bench: Bench) -> Figure | None:
    rows = [row for row in bench.rows if row.case == 'startup_received'] or list(bench.rows)
    stages = [
        name
        for name in (rows[0].figures if rows else {})
        if name.endswith('_ms') and name != 'cpu_ms'
    ]
    if not stages:
        return None
    figure, axes = _figure(9, 1.2 + 0.32 * len(stages), 1)
    axis = axes[0]
    colours = [_STYLES['shared_memory'][0], _STYLES['cyclonedds'][0], _GREY]
    for index, row in enumerate(rows):
        height = 0.8 / len(rows)
        offset = (index - (len(rows) - 1) / 2) * height
        values = [row.figures.get(stage, 0.0) for stage in stages]
        axis.barh(
            [place + offset for place in range(len(stages))],
            values,
            height,
            color=colours[index % 3],
            label=row.variant,
        )
        for place, value in enumerate(values):
            axis.text(value, place + offset, f' {value:.0f}', va='center', fontsize=8)
    axis.set_yticks(
        range(len(stages)), [stage.removesuffix('_ms').replace('_', ' ') for stage in stages]
    )
    axis.invert_yaxis()
    axis.set_xlabel('ms since the program was executed')
    axis.grid(False, axis='y')
    axis.legend(frameon=False, loc='upper right')
    figure.suptitle('From executing perception to the first detections')
    return figure


_PICTURES: Mapping[str, Mapping[str, Callable[[Bench], Figure | None]]] = {
    'link': {'link_latency': _latency, 'link_cpu': _cpu, 'link_read': _read},
    'pipeline': {'pipeline_stages': _pipeline},
    'scale': {'scale': _scale},
    'startup': {'startup': _startup},
}


def draw(benches: Sequence[Bench], folder: Path) -> dict[str, list[Path]]:
    """
    Draw PNG files in *folder*, and return their paths by the benchmark's name.

    The old pictures of a benchmark that was not measured are removed.

    :raises PlotsAbsentError: Matplotlib isn't installed.
    :raises OSError: a picture can't be written or removed.
    """
    drawn: dict[str, list[Path]] = {}
    for bench in benches:
        for name, make in _PICTURES.get(bench.name, {}).items():
            path = folder / f'{name}.png'
            path.unlink(missing_ok=True)
            figure = None if bench.problem else make(bench)
            if figure is not None:
                figure.savefig(path)
                drawn.setdefault(bench.name, []).append(path)
    return drawn
