"""Which buffers the driver's jobs read, by their fences.

A driver adds a job's fence to the reservation object of each buffer that the job reads, and ``bufinfo`` shows the fence of each buffer's
last job. So a job's fence lies in the buffers of its frame. If it lies in another buffer instead, the job read that one, whatever its
handle was imported for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from zc_perception.observe.timeline import KernelEvent
from zc_perception.verify.evidence.attachments import Snapshot


@dataclass(frozen=True)
class FrameJob:
    """A job of the driver, and the buffers of its frame."""

    time_ns: int
    seqno: int
    inodes: frozenset[int]


@dataclass
class FencePlaces:
    """Where fences were seen; jobs by their place in the list.

    :ivar own: jobs whose fence was in the buffers of their frame.
    :ivar elsewhere: jobs whose fence was not there, but in a buffer of no frame with this job's number.
    """

    own: set[int] = field(default_factory=set)
    elsewhere: set[int] = field(default_factory=set)


def drivers_of(contexts: Collection[tuple[int, int]], events: Sequence[KernelEvent]) -> set[str]:
    """The names that the kernel has for the drivers of these fences.

    :param contexts: (context, seqno).
    :param events: those of fences.
    """
    return {
        event.fields.get('driver', '')
        for event in events
        if (event.number('context'), event.number('seqno')) in contexts
    } - {''}


def find_fences(
    jobs: Sequence[FrameJob], users: Mapping[int, Collection[int]], strangers: Collection[int], looks: Sequence[Snapshot],
    drivers: Collection[str],
) -> FencePlaces:  # fmt: skip
    """Compare the last job of each buffer with the fences that lay there at each look.

    Several open files of the card may have a job of the same number, so a fence's number alone says nothing of a buffer that another file's
    job with this number read.

    :param users: by job number, the buffers of all frames with this number.
    :param strangers: numbers of jobs that are no node's frame; these are not judged.
    :param drivers: whose fences count.
    """
    found = FencePlaces()
    waiting = sorted(range(len(jobs)), key=lambda index: jobs[index].time_ns, reverse=True)
    last: dict[int, int] = {}
    for look in sorted(looks, key=lambda one: one.start_ns):
        while waiting and jobs[waiting[-1]].time_ns < look.start_ns:
            index = waiting.pop()
            last |= dict.fromkeys(jobs[index].inodes, index)
        places: defaultdict[int, set[int]] = defaultdict(set)
        for inode, one in look.objects.items():
            for driver, number in one.reads:
                if driver in drivers:
                    places[number].add(inode)
        for index in {last[inode] for inode in last.keys() & look.objects.keys()}:
            number = jobs[index].seqno
            newest = {inode for inode in jobs[index].inodes if last[inode] == index}
            if newest <= places[number]:
                found.own.add(index)
            elif number not in strangers and not places[number] <= set(users.get(number, ())):
                found.elsewhere.add(index)
    return found
