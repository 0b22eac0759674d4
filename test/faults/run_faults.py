"""``make faults``: every fault, what was promised of it, and what came of it; writes ``build/faults/result.json``.

    python test/faults/run_faults.py [--short] [--only WORD …] [--seed N] [--json FILE] [--list]

Exit 0 if everything is zero that must be zero, 1 if not or if nothing could be measured, 2 for wrong use. What is absent for want of a part
of the machine (QEMU, root, a compiler) is named at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from ros_domains import locked_domain

import faults  # noqa: F401 - makes the tests' kits known
from faults.harness import FAULTS, Fault, run_fault
from faults.outcome import BROKEN, Outcome, Result
from faults.stage import Stage

MODULES = (
    'kills', 'hangs', 'slowness', 'scarcity', 'clocks', 'devices', 'peers', 'graph_peers', 'parameter_files', 'lives', 'soak', 'books',
)  # fmt: skip


def all_faults() -> dict[str, Fault]:
    """By name, in the order in which they are done: on the stage last, since what is left in this process may not be the witness's."""
    for module in MODULES:
        importlib.import_module(f'faults.{module}')
    return {name: FAULTS[name] for name in sorted(FAULTS, key=lambda name: FAULTS[name].staged)}


def run(chosen: Sequence[Fault], *, seed: int, short: bool) -> Iterator[Outcome]:
    """Do them, one after the other, on one stage where they share one."""
    with tempfile.TemporaryDirectory(prefix='zf-') as name, locked_domain() as domain:
        folder, stage = Path(name), None
        try:
            for number, each in enumerate(chosen):
                if not each.staged and stage is not None:
                    stage.close()
                    stage = None
                if each.staged and stage is None:
                    stage = Stage(folder, domain)
                with contextlib.nullcontext(domain) if each.staged else locked_domain() as own:
                    outcome = run_fault(each, stage, folder / str(number), own, seed=seed, short=short)
                yield outcome
                if stage is not None and outcome.status == BROKEN:
                    # The next one is not to suffer from it.
                    broken, stage = stage, None
                    broken.close()
        finally:
            if stage is not None:
                stage.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--short', action='store_true', help='the reduced form, as in CI')
    parser.add_argument('--only', nargs='+', default=[''], metavar='WORD', help='faults that have one of these in their group or name')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--json', type=Path, default=Path('build/faults/result.json'))
    parser.add_argument('--list', action='store_true', help='name the faults and their promises')
    options = parser.parse_args(arguments)
    known = all_faults().values()
    chosen = [each for each in known if any(word in f'{each.group}: {each.name}' for word in options.only)]
    chosen = [each for each in chosen if not (options.short and each.long_only)]
    if options.list:
        for each in chosen:
            print(f'{each.group}: {each.name}\n    {each.promise}')
        return 0
    if not chosen:
        parser.error(f'no fault is called like {options.only}; see --list')
    outcomes = []
    for outcome in run(chosen, seed=options.seed, short=options.short):
        outcomes.append(outcome)
        print(f'{outcome.status:6} {outcome.seconds:6.1f} s  {outcome.group}: {outcome.name}{": " * bool(outcome.reason)}{outcome.reason}')
        figures = ', '.join(f'{name} {value}' for name, value in outcome.figures.items())
        print(f'       {outcome.promise}{"; " * bool(figures)}{figures}', flush=True)
    result = Result(tuple(outcomes), options.short, options.seed)
    result.write(options.json)
    print(f'\n{result.table()}\nwrote {options.json}')
    return 0 if result.holds else 1


if __name__ == '__main__':
    # Its children end with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
