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
``make faults``: run every fault, and write ``build/faults/result.json``.

    python test/faults/run_faults.py [--short] [--only WORD …] [--seed N] [--json FILE] [--list]

The result has the promise and the outcome of each fault. The exit code is 0 if all counts that
must be zero are zero, 1 if not or if no fault could run, 2 for wrong use. Faults that this machine
can't run (no QEMU, root or compiler) are listed at the end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
import contextlib
from contextlib import closing
import importlib
import itertools
from pathlib import Path
import signal
import sys
import tempfile

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import faults  # noqa: F401 - makes the tests' kits known
from faults.harness import BROKEN, Fault, FAULTS, Outcome, Result, run_fault
from faults.stage import Stage
from ros_domains import locked_domain

MODULES = ('signals', 'scarcity', 'soak')


def all_faults() -> dict[str, Fault]:
    """Return the faults by name, in the order of running; staged ones come last."""
    for module in MODULES:
        importlib.import_module(f'faults.{module}')
    return {name: FAULTS[name] for name in sorted(FAULTS, key=lambda name: FAULTS[name].staged)}


@contextlib.contextmanager
def theatre(*, short: bool, seed: int = 1) -> Iterator[Callable[[Fault], Outcome]]:
    """
    Yield what runs a fault: on one shared stage if it is staged, else in a domain of its own.

    A stage with a broken promise is replaced, so that it doesn't affect the next fault. At the end
    the process is as it was at the beginning.
    """
    numbers, stages = itertools.count(), contextlib.ExitStack()
    stage: Stage | None = None
    # Short names: they are parts of sockets' addresses.
    with tempfile.TemporaryDirectory(prefix='zf-') as name, locked_domain() as staged, stages:

        def do(each: Fault) -> Outcome:
            nonlocal stage
            folder, form = Path(name) / str(next(numbers)), {'seed': seed, 'short': short}
            if each.staged:
                stage = stage or stages.enter_context(closing(Stage(Path(name), staged)))
                outcome = run_fault(each, stage, folder, staged, **form)
                if outcome.status != BROKEN:
                    return outcome
            stages.close()
            stage = None
            if not each.staged:
                with locked_domain() as domain:
                    outcome = run_fault(each, None, folder, domain, **form)
            return outcome

        yield do


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--short', action='store_true', help='the reduced form, as in CI')
    words = 'faults that have one of these in their group or name'
    parser.add_argument('--only', nargs='+', default=[''], metavar='WORD', help=words)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--json', type=Path, default=Path('build/faults/result.json'))
    parser.add_argument('--list', action='store_true', help='name the faults and their promises')
    options = parser.parse_args(arguments)
    chosen = [
        each
        for each in all_faults().values()
        if any(word in f'{each.group}: {each.name}' for word in options.only)
        and not (options.short and each.long_only)
    ]
    if options.list:
        for each in chosen:
            print(f'{each.group}: {each.name}\n    {each.promise}')
        return 0
    if not chosen:
        parser.error(f'no fault is called like {options.only}; see --list')
    outcomes = []
    with theatre(seed=options.seed, short=options.short) as do:
        for each in chosen:
            outcomes.append(outcome := do(each))
            print(
                f'{outcome.status:6} {outcome.seconds:6.1f} s  {each.group}: '
                f'{each.name}{": " * bool(outcome.reason)}{outcome.reason}'
            )
            figures = ', '.join(f'{name} {value}' for name, value in outcome.figures.items())
            print(f'       {outcome.promise}{"; " * bool(figures)}{figures}', flush=True)
    result = Result(tuple(outcomes), options.short, options.seed)
    result.write(options.json)
    print(f'\n{result.table()}\nwrote {options.json}')
    return 0 if result.holds else 1


if __name__ == '__main__':
    # Exit by exception, so that its children end with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
