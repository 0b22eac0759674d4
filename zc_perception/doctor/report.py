"""The report, for people and for programs. The latter is ``doctor.schema.json``, version 1: ids and keys stay, new ones may come.

Much of it comes from outside: names of processes, nodes, cards and files, values of the parameter file. For people all of it is made
printable here, whatever check it comes from; JSON escapes by itself.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

import zc_perception
from zc_perception.doctor.finding import Status
from zc_perception.doctor.needs import Needs
from zc_perception.doctor.running import Result
from zc_perception.doctor.system import System
from zc_perception.errors import printable

VERSION = 1
# Of figures as text: a camera's formats are many.
_LONGEST = 400
_MARKS = {Status.OK: 'ok  ', Status.WARN: 'warn', Status.FAIL: 'FAIL', Status.SKIP: 'skip'}


def exit_code(results: Sequence[Result]) -> int:
    """0 without a ``fail``, else 1."""
    return int(any(result.finding.status is Status.FAIL for result in results))


def heading(system: System, needs: Needs) -> str:
    """The report's first line."""
    return printable(f'zc_doctor {zc_perception.__version__}: Linux {system.release or "?"} on {system.machine}, {needs.summary()}')


def lines_of(result: Result, verbose: bool) -> Iterator[str]:
    """One finding as lines; nothing for what doesn't apply, unless *verbose*."""
    finding = result.finding
    if finding.status is Status.SKIP and not verbose:
        return
    subject = f' [{finding.subject}]' if finding.subject else ''
    yield printable(f'{_MARKS[finding.status]}  {result.check.id}{subject}: {finding.found}')
    if finding.advice:
        yield printable(f'      -> {finding.advice}')
    if verbose and finding.figures:
        text = ', '.join(f'{name}={value}' for name, value in finding.figures.items())
        yield printable(f'      {text if len(text) <= _LONGEST else text[:_LONGEST] + " … (--json has it all)"}')


def summary_line(results: Sequence[Result], verbose: bool) -> str:
    """The report's last line."""
    counts = Counter(result.finding.status for result in results)
    hidden = ' (--verbose shows them)' if counts[Status.SKIP] and not verbose else ''
    return f'{counts[Status.OK]} ok, {counts[Status.WARN]} warn, {counts[Status.FAIL]} fail, {counts[Status.SKIP]} do not apply{hidden}'


def document(results: Sequence[Result], system: System, needs: Needs) -> dict[str, Any]:
    """What ``--json`` writes."""
    counts = Counter(result.finding.status for result in results)
    return {
        'version': VERSION,
        'environment': {
            'date': datetime.now(timezone.utc).isoformat(timespec='seconds'),
            'kernel': system.release,
            'machine': system.machine,
            'python': platform.python_version(),
            'package': zc_perception.__version__,
            'user': system.user,
        },
        'params_file': needs.path,
        'checks': [
            {
                'id': result.check.id,
                'group': result.check.group,
                'subject': result.finding.subject,
                'status': result.finding.status.value,
                'found': result.finding.found,
                'advice': result.finding.advice,
                'figures': dict(result.finding.figures),
            }
            for result in results
        ],
        'summary': {**{status.value: counts[status] for status in Status}, 'exit_code': exit_code(results)},
    }
