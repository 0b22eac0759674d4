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
The entry point and the options of ``zc_doctor``, which needs neither ROS nor root.

:mod:`~zc_perception.doctor.command` does the work. It is imported inside ``ending_quietly``, so
that a Ctrl-C during the import prints no traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
import sys

from zc_perception.terminal import ending_quietly

# Type checkers treat this name like typing.TYPE_CHECKING; importing typing would take time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse  # noqa: I300

    from zc_perception.machine.system import System
    from zc_perception.programs import OptionParser

_STDOUT = '-'
_WHAT = """Checks everything that the camera-to-NPU path needs, and prints the next step for each
problem. A problem is a failure if the parameter file names the device, and a warning if 'auto' may
choose it. With a parameter file, only the devices that it uses are checked; without one, all
devices are checked."""
_EXAMPLES = (
    'zc_doctor',
    'zc_doctor --params-file my.yaml --verbose',
    'zc_doctor --only cameras metis',
)


def _parser() -> OptionParser:
    from zc_perception.machine.asking import CHECK_LIMIT_S
    from zc_perception.programs import OptionParser

    parser = OptionParser(
        'zc_doctor',
        _WHAT,
        _EXAMPLES,
        after='Exit code: 0 no check failed, 1 a check failed, 2 wrong use.',
    )
    main, more = parser.main, parser.more
    main.add_argument(
        '--params-file',
        metavar='FILE',
        help='the ROS parameter file with which the nodes will start',
    )
    main.add_argument(
        '--cameras',
        nargs='+',
        default=[],
        metavar='NAME',
        help="the cameras' namespaces, the same as for the program perception",
    )
    main.add_argument(
        '--only',
        nargs='+',
        default=[],
        metavar='GROUP',
        help='run only the checks of these groups, such as cameras or model; for a wrong name, '
        'the error lists all groups',
    )
    main.add_argument(
        '--verbose', action='store_true', help='show measured values, and checks that do not apply'
    )
    more.add_argument(
        '--json',
        nargs='?',
        const=_STDOUT,
        metavar='FILE',
        help='write the result as JSON to FILE; without FILE, print the JSON, not the report',
    )
    more.add_argument(
        '--time-limit',
        type=float,
        default=CHECK_LIMIT_S,
        metavar='S',
        help=f'time limit of each check (default: {CHECK_LIMIT_S:g})',
    )
    return parser


def main(arguments: Sequence[str] | None = None, system: System | None = None) -> int:
    """
    Run the program, by default with the command line's arguments; return its exit code.

    The code is 0 if no check failed, 1 if one failed, 2 for wrong use, 128 + n after signal n.
    """
    with ending_quietly('zc_doctor'):
        from zc_perception.programs import start

        def run(options: argparse.Namespace) -> int:
            from zc_perception.doctor import command
            from zc_perception.machine.system import System

            return command.run_until_a_signal(
                options, system or System(), json_only=options.json == _STDOUT
            )

        return start(_parser(), run, arguments)


if __name__ == '__main__':
    sys.exit(main())
