"""One node while it is measured: its frames, what it says of itself at the window's ends, whether it lasted, and its threads.

What a node says of itself must have a certain form (:func:`check_facts`): any user can leave a frame log with anything in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from zc_perception.errors import shown
from zc_perception.observe.frame_log import FrameLogReader, FrameRecord
from zc_perception.observe.processes import PROC, threads_of
from zc_perception.observe.timeline import KernelEvent
from zc_perception.verify.evidence import Unreadable
from zc_perception.verify.evidence.kernel_events import FORK
from zc_perception.verify.observation import INFERENCE, NodeView


def _is_text(value: object) -> bool:
    """That can be a path, and be written."""
    return (
        isinstance(value, str)
        and '\0' not in value
        and not any('\ud800' <= c <= '\udfff' for c in value)
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


_Form = tuple[Callable[[object], bool], str]
_TEXT: _Form = (_is_text, 'a text')
_COUNT: _Form = (_is_count, 'a number of 0..18446744073709551615')
#: All that is read of them here; what else a node tells is no matter.
_FORMS: dict[str, _Form] = {
    **dict.fromkeys(
        ('accelerator', 'pci_address', 'rung', 'camera', 'device', 'heap', 'fourcc'), _TEXT
    ),
    **dict.fromkeys(('width', 'height', 'slots', 'failed', 'dropped', 'trial_imports'), _COUNT),
    'import_cache': (lambda value: isinstance(value, bool), 'true or false'),
    'pool': (
        lambda value: (
            isinstance(value, list)
            and all(isinstance(x, list) and len(x) == 2 and all(map(_is_count, x)) for x in value)
        ),
        'a list of [st_dev, inode]',
    ),
    'copies': (
        lambda value: (
            isinstance(value, dict)
            and all(
                _is_text(reason) and isinstance(entry, dict) and _is_count(entry.get('count'))
                for reason, entry in value.items()
            )
        ),
        '{reason: {"count": number}}',
    ),
}


def check_facts(facts: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Those in their form, and a sentence for each that isn't."""
    good = dict(facts)
    wrong = []
    for name, (fits, form) in _FORMS.items():
        if name in good and not fits(good[name]):
            wrong.append(f'its {name} is {shown(good.pop(name))}; it must be {form}')
    return good, wrong


_RECENT = 32


class WatchedNode(NodeView):
    """One node whose frame log is read.

    A node rewrites its facts about once a second. Its facts at a certain time are therefore the next ones that it writes: call
    :meth:`expect_facts`, and wait until :attr:`renewed`. :class:`~zc_perception.verify.measurement.Measurement` does so at both ends of the
    window, with :meth:`begin` after the first wait and :meth:`keep_facts` after the last.
    """

    def __init__(self, log: FrameLogReader) -> None:
        super().__init__(log.pid, log.node, log.role)
        self.log = log
        self.records: list[FrameRecord] = []
        self._kept = False
        self._old: dict[str, Any] = {}
        self._new: dict[str, Any] | None = None
        self._written = 0
        self._wrong: dict[str, None] = {}

    def read(self) -> None:
        """Its new records, and whether it is still there."""
        self.records += self.log.read()
        self.lost = self.log.lost
        if not self.ended_ns and not self._kept and not self.log.alive:
            self.ended_ns = time.monotonic_ns()

    def begin(self) -> None:
        """The window begins: its facts of now become :attr:`before`."""
        self.before = self.facts()

    def facts(self) -> Mapping[str, Any]:
        """The latest ones of the window, without those that are in a wrong form: see :attr:`unreadable`."""
        return self.after if self._kept else self._checked(self.log.facts())

    def _checked(self, facts: dict[str, Any]) -> dict[str, Any]:
        good, wrong = check_facts(facts)
        self._wrong |= dict.fromkeys(wrong)
        return good

    def expect_facts(self) -> None:
        """The next facts that it writes are the ones that count."""
        self._old, self._new, self._written = self.log.facts(), None, self.log.written

    @property
    def renewed(self) -> bool:
        """Whether it has written facts since :meth:`expect_facts`. The first ones are kept, because later ones are of a later time."""
        if self._new is None and (facts := self.log.facts()) != self._old:
            self._new = facts
        return self._new is not None

    @property
    def idle(self) -> bool:
        """Whether it has finished no frame since :meth:`expect_facts`. Then its facts may stay as they are."""
        return self.log.written == self._written

    def is_past(self, time_ns: int) -> bool:
        """Whether all frames are known that it submitted before *time_ns*: it has finished one that it submitted later."""
        if self.role != INFERENCE or not time_ns:
            return True
        return any(record.submitted_ns > time_ns for record in self.records[-_RECENT:])

    def keep_facts(self) -> None:
        """Take the first facts since :meth:`expect_facts` as those of the window's end. Whatever the node does later does not count."""
        self.described = self.renewed or self.idle
        self.after = self._checked(self._old if self._new is None else self._new)
        self._kept = True

    @property
    def unreadable(self) -> list[Unreadable]:
        """What it said in a wrong form so far."""
        source = f'frame log of {self.node} (process {self.pid})'
        step = 'end that program, or use its version of the package; or name the nodes to be measured with --pid'
        return [Unreadable(source, wrong, step) for wrong in self._wrong]


class NodeThreads:
    """Which threads belong to the nodes: those that they have, and whoever those start, children included.

    :param pids: the nodes' processes.
    """

    def __init__(self, pids: Iterable[int], proc: Path = PROC) -> None:
        self._proc = proc
        self._process_of: dict[int, int] = {}
        for pid in pids:
            self.add(pid)

    def add(self, pid: int) -> None:
        """A process, with the threads that it has now."""
        self._process_of[pid] = pid
        for tid in threads_of(pid, self._proc):
            self._process_of[tid] = pid

    def look(self) -> None:
        """Again at all of them, for threads started since."""
        for pid in set(self._process_of.values()):
            for tid in threads_of(pid, self._proc):
                self._process_of[tid] = pid

    def follow(self, events: Iterable[KernelEvent]) -> None:
        """Take in what ``sched_process_fork`` events tell: threads and children that may have ended before anybody looked."""
        for event in events:
            if event.name == FORK and (parent := self._process_of.get(event.tid)) is not None:
                self._process_of.setdefault(event.number('child_pid'), parent)

    def processes(self) -> dict[int, int]:
        """By thread, the node's process."""
        return dict(self._process_of)

    @property
    def pids(self) -> Collection[int]:
        """Of the nodes' processes."""
        return sorted(set(self._process_of.values()))
