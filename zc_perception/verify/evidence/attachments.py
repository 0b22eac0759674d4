"""Which devices were attached to which buffer at which moment.

``bufinfo`` alone misses what is attached and detached again between two looks. So one look is taken in which nothing was attached or
detached at the same time, and all attach and detach events before and after it are applied. The result is the exact list at each moment, if
all other looks agree with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zc_perception.observe.timeline import KernelEvent
from zc_perception.verify.evidence.buffers import BufferObject
from zc_perception.verify.evidence.kernel_events import ATTACH, DETACH

# An attach is recorded when it returns and a detach when it begins, so a look in between sees the attachment without its event.
_MARGIN_NS = 2_000_000
_PRECISION_NS = 1000


@dataclass(frozen=True)
class Snapshot:
    """One look at ``bufinfo``, which lasted from *start_ns* to *end_ns* (CLOCK_MONOTONIC)."""

    start_ns: int
    end_ns: int
    objects: Mapping[int, BufferObject]

    def attached(self, inode: int) -> Counter[str]:
        """Devices and how often each is attached; nothing for a buffer that isn't there."""
        found = self.objects.get(inode)
        return Counter(found.attached) if found is not None else Counter()


@dataclass
class History:
    """The attachments of one buffer.

    :ivar times: from when each state holds; the first holds from before everything.
    :ivar exact: whether events and looks fit together; else it is what was seen, at least.
    """

    times: list[int] = field(default_factory=list)
    states: list[Counter[str]] = field(default_factory=list)
    exact: bool = True

    def at(self, time_ns: int) -> Counter[str]:
        """The devices at a moment. Two moments of one microsecond are one."""
        return self.states[max(0, bisect_right(self.times, time_ns + _PRECISION_NS) - 1)]

    def during(self, start_ns: int, end_ns: int) -> list[Counter[str]]:
        """All states of a span."""
        first = max(0, bisect_right(self.times, start_ns) - 1)
        return self.states[first : max(first + 1, bisect_right(self.times, end_ns))]


def event_history(
    inode: int, snapshots: Sequence[Snapshot], events: Iterable[KernelEvent]
) -> History:
    """From looks and events, all of them since the recording began."""
    own = sorted(
        (
            event
            for event in events
            if event.name in (ATTACH, DETACH) and event.inode == inode and not event.failed
        ),
        key=lambda event: event.time_ns,
    )
    base = next((look for look in snapshots if _is_quiet(look, own)), None)
    exact = base is not None or not snapshots
    state = Counter(base.attached(inode)) if base is not None else Counter()
    before = [event for event in own if base is not None and event.time_ns < base.start_ns]
    for event in reversed(before):
        exact = _step(state, event, backwards=True) and exact
    history = History([0], [Counter(state)], exact)
    for event in own:
        history.exact = _step(state, event, backwards=False) and history.exact
        history.times.append(event.time_ns)
        history.states.append(Counter(state))
    for look in snapshots:
        if _is_quiet(look, own) and history.at(look.end_ns) != look.attached(inode):
            history.exact = False
    return history


def _is_quiet(look: Snapshot, own: Sequence[KernelEvent]) -> bool:
    return not any(
        look.start_ns - _MARGIN_NS <= event.time_ns <= look.end_ns + _MARGIN_NS for event in own
    )


def _step(state: Counter[str], event: KernelEvent, *, backwards: bool) -> bool:
    """Apply one event; whether it was possible."""
    device = event.fields.get('dev_name', '')
    if (event.name == ATTACH) != backwards:
        state[device] += 1
        return True
    if state[device] <= 0:
        del state[device]
        return False
    state[device] -= 1
    if not state[device]:
        del state[device]
    return True


def polled_history(inode: int, snapshots: Sequence[Snapshot]) -> History:
    """From looks alone: what was attached at each of them. Never exact."""
    history = History([0], [snapshots[0].attached(inode) if snapshots else Counter()], False)
    for look in snapshots:
        history.times.append(look.start_ns)
        history.states.append(look.attached(inode))
    return history
