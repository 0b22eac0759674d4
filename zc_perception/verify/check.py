"""What a check concludes, and what to do when an invariant does not hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    """Whether an invariant holds.

    :ivar holds: ``None``: not known. Never true for what could not be read.
    :ivar source: what was asked.
    :ivar figures: numbers, lists and texts that JSON can carry.
    :ivar reason: why it does not hold, or is not known: one sentence; empty where it holds.
    :ivar next_step: what to do then.
    """

    name: str
    title: str
    holds: bool | None
    source: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ''
    next_step: str = ''

    @property
    def measured(self) -> bool:
        """Whether there is a verdict."""
        return self.holds is not None

    def as_json(self) -> dict[str, Any]:
        """For ``result.json``."""
        own = {'holds': self.holds, 'measured': self.measured, 'source': self.source, 'reason': self.reason, 'next_step': self.next_step}
        return {**own, **self.figures}


@dataclass
class Findings:
    """What speaks against an invariant, and what is not known of it; a check is made of both.

    :ivar broken: (reason, next step); one is enough for false.
    :ivar unknown: the same; without anything broken, one is enough for "not known".
    """

    broken: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)

    def conclude(self, name: str, title: str, source: str, figures: Mapping[str, Any]) -> Check:
        """The verdict."""
        if self.broken:
            holds: bool | None = False
        else:
            holds = None if self.unknown else True
        told = self.broken or self.unknown
        steps = list(dict.fromkeys(step for _, step in told if step))
        return Check(name, title, holds, source, figures, '; '.join(dict.fromkeys(reason for reason, _ in told)), '; '.join(steps))


#: By what was seen, what to do then: the failure table of the zero-copy document.
NEXT_STEPS = {
    'no_frames': (
        'look at /diagnostics of the nodes: does the camera deliver, and does the inference node get frames? Measure longer (--seconds); '
        "activate or enable a node that rests, or name the other nodes' processes with --pid"
    ),
    'node_ended': 'look into its log for the reason, start it again, and measure while it runs',
    'not_described': 'look for what blocks its callbacks (/diagnostics is silent as well), and measure once more',
    'frames_lost': 'measure at a lower frame rate, or on a machine with less load',
    'no_importer': "use accelerator 'axl' with a driver that has the import ioctls; the inference node's log says why it was not chosen",
    'no_device': 'look for the card in /sys/bus/pci/devices; zc_doctor checks it',
    'not_attached': "look for /dmabuf: lines in /proc/PID/maps of the inference node, and let it import the camera's own descriptor",
    'unknown_exporter': 'with Argus pass nvbuf-memory-type=4 (CMA); if the memory is fine for your devices, name it with --known-exporter',
    'not_a_dmabuf': (
        "let the capture node use dma-bufs (heap dma_heap/… or the camera's own buffers); zc_doctor tells which heaps there are"
    ),
    'not_imported': (
        'dmesg | grep axl; strace -f -e trace=ioctl -p PID; compare the ioctl numbers of driver and package (parameter axl_ioctls)'
    ),
    'imports_differ': (
        'does the camera open new buffers while it runs (other inodes in every frame)? Otherwise look at parameter import_cache'
    ),
    'imports_kept': (
        'look at release_errors in /diagnostics of the inference node, and at dmesg; otherwise set import_cache to true and report it'
    ),
    'submits_differ': 'look for other programs that use the card, and for lost frames in /diagnostics of the inference node',
    'mapped': 'end that program, or let it take frames as an importer does; in the nodes use no observer that maps frames',
    'was_mapped': 'find who by the events in trace.txt; a camera or consumer that calls map() on frames does this',
    'mapped_before': 'find who by the events in trace.txt and end that program, or measure once more',
    'unseen_producer': (
        "measure all nodes of the pipeline: name the capture node's process with --pid, too, or leave --pid out; a node that has no frame "
        'log says why in its own'
    ),
    'backing_memory': 'end that program, or let the camera use another heap (dma_heap/system)',
    'pinned_pages': 'end that program, or whatever reads the pipe too slowly, and measure once more',
    'copied': 'make the settings of both sides the same; look at conversions and rung in /diagnostics',
    'booked': (
        'end plain sensor_msgs/Image subscribers of the topic (RViz, rosbag2), and use a camera and an accelerator that are copy-free'
    ),
    'slow_fences': 'lspci -vvv -d 1f9d:1100 | grep LnkSta must show Speed 8GT/s and Width x4; zc_doctor checks it',
    'lost_events': 'measure for a shorter time, or stop what else makes fences on this machine',
}

#: A wait for a fence above it is told, though it breaks no invariant.
SLOW_FENCE_MS = 50.0


def advice(seen: str) -> str:
    """What to do, by one of :data:`NEXT_STEPS`."""
    return NEXT_STEPS[seen]
