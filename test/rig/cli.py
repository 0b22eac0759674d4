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

"""Run a command in the kernel rig: ``python test/rig/cli.py run -- CMD...`` (see --help)."""

from __future__ import annotations

import argparse
from pathlib import Path
import shlex
import sys
import time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rig.errors import (  # noqa: E402
    RC_UNAVAILABLE,  # noqa: E402
    RigError,
    RigUnavailable,
)
from rig.rig import (
    Rig,  # noqa: E402
    VIVID_DEFAULT,  # noqa: E402
)

RC_RIG_FAILED = 125


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest='what', required=True)
    commands.add_parser('prepare', help='fetch the kernel, build the module; both are cached')
    run = commands.add_parser('run', help='run a command as root in a guest')
    run.add_argument(
        '-o',
        '--out',
        type=Path,
        default=Path('build/rig'),
        help='folder for the artifacts ($RIG_OUT)',
    )
    run.add_argument('-t', '--timeout', type=float, default=120.0, help='seconds for the command')
    run.add_argument(
        '--vivid',
        nargs='?',
        const=VIVID_DEFAULT,
        help='load the vivid camera, with these parameters',
    )
    run.add_argument(
        '--param', default='', help="parameters of the virtual Metis, e.g. 'latency_us=5000'"
    )
    run.add_argument(
        '--env',
        action='append',
        default=[],
        metavar='NAME=VALUE',
        help='a variable for the command',
    )
    run.add_argument('--append', default='', help="for the kernel's command line")
    run.add_argument('--qemu', type=shlex.split, default=[], help='more arguments for QEMU')
    run.add_argument('command', nargs='+', help='the command, after --')
    parser.add_argument(
        '--install',
        action='store_true',
        default=None,
        help='install QEMU with apt if it is missing',
    )
    return parser


def main() -> int:
    """Return the guest's status, or 77 unavailable, 125 not finished, 126 kernel complained."""
    arguments = _parser().parse_args()
    try:
        rig = Rig(install=arguments.install)
        started = time.monotonic()
        kernel = rig.prepare()
        print(
            f'rig: linux {kernel.version}, ready after {time.monotonic() - started:.1f} s',
            file=sys.stderr,
        )
        if arguments.what == 'prepare':
            return 0
        result = rig.run(
            arguments.command,
            timeout=arguments.timeout,
            out_dir=arguments.out,
            vivid=arguments.vivid,
            module_params=arguments.param,
            env=dict(pair.split('=', 1) for pair in arguments.env),
            append=arguments.append,
            qemu_args=arguments.qemu,
        )
    except RigUnavailable as error:
        print(f'rig: unavailable: {error}', file=sys.stderr)
        return RC_UNAVAILABLE
    except RigError as error:
        print(f'rig: {error}', file=sys.stderr)
        return RC_RIG_FAILED
    if result.ok:
        sys.stdout.write(result.stdout)
        sys.stderr.write(result.stderr)
        print(
            (
                f'rig: {result.wall_s:.1f} s, up after {result.boot_s} s, artifacts in '
                f'{arguments.out}'
            ),
            file=sys.stderr,
        )
    else:
        print(result.report())
    return result.rc


if __name__ == '__main__':
    sys.exit(main())
