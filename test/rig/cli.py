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
import sys

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rig import RigError, RigUnavailable, tell  # noqa: E402
from rig.rig import Rig, VIVID_DEFAULT  # noqa: E402


def main() -> int:
    """Return the guest's status, or 77 unavailable, 125 not finished, 126 kernel complained."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add('what', choices=['run'])
    add('-o', '--out', type=Path, default=Path('build/rig'), help='folder for the artifacts')
    add('-t', '--timeout', type=float, default=120.0, help='of the command, s')
    add('--vivid', nargs='?', const=VIVID_DEFAULT, help='load vivid, with these parameters')
    add('command', nargs='+', help='the command, after --')
    options = parser.parse_args()
    try:
        result = Rig(install=True).run(
            options.command, timeout=options.timeout, out_dir=options.out, vivid=options.vivid
        )
    except (RigUnavailable, RigError) as error:
        return tell(error)
    if result.ok:
        sys.stdout.write(result.stdout)
        sys.stderr.write(result.stderr)
    else:
        print(result.report())
    return result.rc


if __name__ == '__main__':
    sys.exit(main())
