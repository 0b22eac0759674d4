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
``zc_timeline``: show how much time the running nodes need for each stage of a frame.

The program reads the nodes' frame logs, and needs neither root nor ROS. It prints a table with a
row for each stage: the median, the 99th percentile, and the share in per cent. The share is the
stage's median divided by the median for all stages together. Option ``--trace`` writes a trace of
every frame, for ui.perfetto.dev.
"""

from __future__ import annotations

from collections.abc import Sequence
import sys

from zc_perception.terminal import ending_quietly, put

# Importing typing.TYPE_CHECKING would slow the program's start, see zc_perception/__init__.py.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse  # noqa: I300
    from typing import Any

    from zc_perception.observe.frame_log import FrameRecord
    from zc_perception.observe.timeline import NodeTrack
    from zc_perception.programs import OptionParser

_WHAT = """Shows how long each stage of a frame takes in the nodes that run right now. It reads
the frame logs that the nodes always write, so it doesn't slow them down."""
_READ_S = 10.0
"""Seconds between two reads of the logs. A log has room for 10 s at 400 frames per second."""
_EXAMPLES = (
    'zc_timeline',
    'zc_timeline --seconds 10 --trace trace.json',
    'zc_timeline 4711 --json stages.json',
)


def _parser() -> OptionParser:
    from zc_perception.programs import OptionParser

    parser = OptionParser(
        'zc_timeline',
        _WHAT,
        _EXAMPLES,
        usage='[options] [PID ...]',
        after='Exit code: 0 success, 1 there are no nodes or frames to show, 2 wrong use.',
    )
    parser.main.add_argument(
        'pids', nargs='*', type=int, metavar='PID', help="the nodes' processes (default: all)"
    )
    parser.main.add_argument(
        '--seconds', type=float, default=5.0, help='how long to measure (default: 5)'
    )
    parser.main.add_argument(
        '--trace', metavar='FILE', help='write a trace of every frame, for ui.perfetto.dev'
    )
    parser.main.add_argument('--json', metavar='FILE', help="write the table's rows as JSON")
    return parser


def stage_rows(records: Sequence[FrameRecord]) -> list[dict[str, Any]]:
    """
    Return a table row for each stage, and one for all stages together.

    :raises ZcError: fewer than two of the *records* have both the time of the capture and the time
        of sending detections.
    """
    from zc_perception.errors import ZcError
    from zc_perception.observe.timeline import is_whole, stages_us, WHOLE

    stages = [stages_us(record) for record in records if is_whole(record)]
    if len(stages) < 2:
        raise ZcError(
            'fewer than two frames were captured and processed on this machine in that time; '
            'measure for longer with --seconds'
        )
    ordered = {name: sorted(frame[name] for frame in stages) for name in stages[0]}
    median = {name: values[len(values) // 2] for name, values in ordered.items()}
    return [
        {
            'stage': name,
            'median_us': round(median[name], 3),
            'p99_us': round(values[int(len(values) * 0.99)], 3),
            'share_percent': round(100.0 * median[name] / median[WHOLE], 1)
            if median[WHOLE]
            else 0,
        }
        for name, values in ordered.items()
    ]


def _table(rows: Sequence[dict[str, Any]]) -> str:
    from zc_perception.observe.timeline import STAGES

    between = dict(STAGES)
    return '\n'.join(
        [
            f'{"stage":8s} {"median [ms]":>11s} {"p99 [ms]":>9s} {"share [%]":>9s}',
            *(
                f'{row["stage"]:8s} {row["median_us"] / 1e3:11.3f} {row["p99_us"] / 1e3:9.3f} '
                f'{row["share_percent"]:9.1f}   {between.get(row["stage"], "")}'.rstrip()
                for row in rows
            ),
        ]
    )


def budget_of(track: NodeTrack) -> dict[str, Any]:
    """
    Count the frames that missed the node's deadline, in total and by stage.

    Each late frame is counted for the stage that exceeded its usual duration most.
    """
    from zc_perception.observe.timeline import FrameBudget, is_whole, times_ns

    budget, whole = FrameBudget(track.deadline_s), list(filter(is_whole, track.records))
    for record in whole:
        budget.judge(*times_ns(record))
    worst = budget.take_worst()
    return {
        'node': track.node,
        'deadline_ms': track.deadline_s * 1e3,
        'frames': len(whole),
        'late': budget.late,
        'stages': dict(budget.stages),
        'worst': None if worst is None else worst._asdict(),
        'text': '' if worst is None else str(worst),
    }


def _budget_line(budget: dict[str, Any]) -> str:
    stages = ', '.join(f'{stage} {count}' for stage, count in budget['stages'].items())
    return (
        f'{budget["node"]}: deadline {budget["deadline_ms"]:g} ms, {budget["late"]} of '
        f'{budget["frames"]} frames late'
    ) + (f' ({stages}), the worst {budget["text"]}' if stages else '')


def _watch(pids: Sequence[int], seconds: float) -> list[NodeTrack]:
    """
    Return the records that the nodes write in the next *seconds*.

    Print which processes' frame logs can't be read; many processes share one line.
    """
    import time

    from zc_perception.errors import printable, ZcError
    from zc_perception.observe.frame_log import find_frame_logs, hidden_logs
    from zc_perception.observe.timeline import NodeTrack

    with find_frame_logs(pids=pids or None) as logs:
        # A process without a name has ended: report this process only if the user gave its pid.
        for what, why, step in hidden_logs([one for one in logs.unreadable if pids or one.name]):
            put(printable(f'not seen: {what}: {why}; {step}'), sys.stderr)
        roles = {log.role for log in logs}
        if pids and 'inference' not in roles:
            raise ZcError(
                'no frame log of an inference node is found in these processes; name the process '
                'of an inference node, which has the times of all stages'
            )
        if not pids and not {'capture', 'inference'} <= roles:
            raise ZcError(
                'no frame logs of a capture and an inference node are found; start both nodes, '
                'for example with the program perception'
            )
        names = ', '.join(sorted(log.node for log in logs))
        put(printable(f'looking at {names} for {seconds:g} s'), sys.stderr)
        for log in logs:
            log.skip()
        found: list[list[FrameRecord]] = [[] for _ in logs]
        left_s = seconds
        while left_s > 0:
            part_s = min(_READ_S, left_s)
            time.sleep(part_s)
            left_s -= part_s
            for records, log in zip(found, logs, strict=True):
                records += log.read()
        return [
            NodeTrack(
                log.node, log.role, log.pid, records, float(log.facts().get('deadline_s', 0.0))
            )
            for records, log in zip(found, logs, strict=True)
        ]


def _run(options: argparse.Namespace) -> int:
    import json
    import os
    from pathlib import Path

    from zc_perception.errors import ConfigError
    from zc_perception.observe.timeline import build_timeline
    from zc_perception.whole_file import output_file, write_output

    if not 0 < options.seconds < float('inf'):
        raise ConfigError(
            f'--seconds {options.seconds:g}: give a number of seconds above 0, such as 10'
        )
    trace, rows_file = (
        None if name is None else output_file(name, option)
        for option, name in (('--trace', options.trace), ('--json', options.json))
    )
    if trace and rows_file and trace.resolve() == rows_file.resolve() != Path(os.devnull):
        raise ConfigError(f"--trace and --json are both '{trace}'; give each a file of its own")
    tracks = _watch(options.pids, options.seconds)
    records = [record for track in tracks if track.role == 'inference' for record in track.records]
    if trace is not None:
        write_output(trace, json.dumps(build_timeline(tracks)), '--trace')
        put(f'{trace} (open it in ui.perfetto.dev)', sys.stderr)
    rows = stage_rows(records)
    budgets = [budget_of(track) for track in tracks if track.deadline_s]
    if rows_file is not None:
        document = {'seconds': options.seconds, 'frames': len(records), 'stages': rows}
        document |= {'deadlines': budgets} if budgets else {}
        write_output(rows_file, json.dumps(document, indent=1) + '\n', '--json')
    error = put('\n'.join([_table(rows), *map(_budget_line, budgets)]), sys.stdout)
    if error is not None and rows_file is None:
        raise ConfigError(
            f"the result can't be printed: {error.strerror}; give a file with --json"
        )
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the program, and return its exit code.

    :returns: 0 if frames were shown, 1 if there are no nodes or frames, 2 for wrong use, 128 + n
        if signal n came.
    """
    with ending_quietly('zc_timeline'):
        from zc_perception.programs import exit_code_of, start

        return start(
            _parser(),
            lambda options: exit_code_of('zc_timeline', lambda: _run(options)),
            arguments,
        )


if __name__ == '__main__':
    sys.exit(main())
