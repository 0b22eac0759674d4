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

"""Options of ``zc_demo`` and their checks; :mod:`~zc_perception.nodes.demo_run` does the work."""

from __future__ import annotations

from collections.abc import Sequence

from zc_perception.terminal import ending_quietly

TYPE_CHECKING = False  # type checkers take it as true; importing typing here would take time
if TYPE_CHECKING:
    import argparse  # noqa: I300

    from zc_perception.programs import OptionParser

DEFAULT_DURATION_S = 10.0
_CAMERAS = ('synthetic', 'replay')
_REPLAY_ONLY = ('video', 'keep_all')
_SYNTHETIC_ONLY = ('seed',)


def main(args: Sequence[str] | None = None) -> int:
    """Run ``zc_demo``; return 0 after a whole run or a signal."""
    with ending_quietly():
        from zc_perception.programs import start

        def run(options: argparse.Namespace) -> int:
            check(options)
            from zc_perception.nodes import demo_run

            return demo_run.run(options)

        return start(option_parser(), run, args)


def option_parser() -> OptionParser:
    """Return the parser of ``zc_demo``'s options."""
    from pathlib import Path

    from zc_perception.programs import OptionParser

    parser = OptionParser(
        'zc_demo',
        (
            'Runs camera, link, accelerator and detections in one process on real ROS 2 topics, '
            'and writes summary.json and detections.png.'
        ),
        [
            'zc_demo',
            'zc_demo --duration 5 --out build/demo',
            'zc_demo --video drive.mp4 --keep-all',
            'zc_demo --model yolo11n.onnx --video people.avi',
        ],
    )
    first, more = parser.main, parser.more
    first.add_argument(
        '--duration',
        type=float,
        metavar='S',
        help='seconds to run; default 10, or no limit with --keep-all or --frames',
    )
    first.add_argument(
        '--camera',
        metavar='|'.join(_CAMERAS),
        help='a drawn road scene (default), or a recording (default with --video)',
    )
    first.add_argument('--video', metavar='FILE', help='the recording to play (camera replay)')
    first.add_argument(
        '--model',
        default='road',
        help="a shipped model (road, hog), an ONNX file, an exported model's folder or a "
        'model.yaml; default road',
    )
    first.add_argument(
        '--accelerator', default='auto', help='auto (default), or the name of an accelerator'
    )
    first.add_argument(
        '--out',
        type=Path,
        default=Path('build/demo'),
        metavar='FOLDER',
        help='folder for summary.json and detections.png; default build/demo',
    )
    more.add_argument(
        '--frames',
        type=int,
        metavar='N',
        help='stop when the detector has run on this number of frames',
    )
    more.add_argument(
        '--keep-all',
        action='store_true',
        help='for --camera replay: run the detector once on each frame, as fast as it can',
    )
    more.add_argument(
        '--width',
        type=int,
        default=0,
        metavar='PX',
        help="width of the picture; default: the camera's own",
    )
    more.add_argument(
        '--height',
        type=int,
        default=0,
        metavar='PX',
        help="height of the picture; default: the camera's own",
    )
    more.add_argument(
        '--framerate',
        type=float,
        default=0.0,
        metavar='HZ',
        help="frames per second; default: the camera's own",
    )
    more.add_argument(
        '--seed', type=int, metavar='N', help='camera synthetic: number of the scene; default 0'
    )
    more.add_argument('--heap', default='auto', help='where the buffers come from; default auto')
    return parser


def check(options: argparse.Namespace) -> None:
    """Raise ConfigError for options that can't work; set defaults that depend on other options."""
    import math

    from zc_perception.errors import ConfigError, nearest, shown

    if options.camera is None:
        options.camera = 'replay' if options.video else 'synthetic'
    if options.camera not in _CAMERAS:
        near = nearest(options.camera, _CAMERAS)
        raise ConfigError(
            f'--camera is {shown(options.camera)}; it must be one of {", ".join(_CAMERAS)}{near}; '
            'for other cameras use the program perception (--ros-args -p camera:=NAME)'
        )
    if options.frames is not None and options.frames < 1:
        raise ConfigError(f'--frames is {options.frames}; it must be at least 1')
    if options.duration is None:
        unbounded = options.keep_all or options.frames is not None
        options.duration = math.inf if unbounded else DEFAULT_DURATION_S
    elif not (math.isfinite(options.duration) and options.duration > 0):
        raise ConfigError(
            f'--duration is {options.duration:g}; it must be a positive number of seconds'
        )
    replay = options.camera == 'replay'
    for name in _SYNTHETIC_ONLY if replay else _REPLAY_ONLY:
        if (given := getattr(options, name)) is not None and given is not False:
            instead = 'leave it out' if replay else 'add --camera replay'
            raise ConfigError(
                f'--{name.replace("_", "-")} has no effect with --camera {options.camera}; '
                f'{instead}'
            )
    if replay and not options.video:
        raise ConfigError('--camera replay needs a recording; add --video FILE')
    options.seed = options.seed or 0
