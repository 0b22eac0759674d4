"""What a check concludes, and what to do when an invariant does not hold.

The next steps are the failure table of the zero-copy document. Each row: what was seen, what it usually means, what to do.
"""

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


@dataclass(frozen=True)
class FailureMode:
    """A row of the table."""

    diagnosis: str
    next_step: str

    def __str__(self) -> str:
        return f'{self.diagnosis}: {self.next_step}'


FAILURE_MODES = {
    'no_frames': FailureMode(
        'no frame was submitted while it was measured',
        "look at /diagnostics of the nodes: does the camera deliver, and does the inference node get frames? Measure longer (--seconds); "
        "activate or enable a node that rests, or name the other nodes' processes with --pid",
    ),
    'node_ended': FailureMode(
        'a node ended, or was killed, while it was measured, and left frames and copies uncounted',
        'look into its log for the reason, start it again, and measure while it runs',
    ),
    'not_described': FailureMode(
        "a node's counters are old: its executor hangs, or the machine is too slow for it",
        'look for what blocks its callbacks (/diagnostics is silent as well), and measure once more',
    ),
    'frames_lost': FailureMode(
        'frames were overwritten in a frame log before they were read',
        'measure at a lower frame rate, or on a machine with less load',
    ),
    'no_importer': FailureMode(
        'the accelerator reads frames through the CPU instead of importing them',
        "use accelerator 'axl' with a driver that has the import ioctls; the inference node's log says why it was not chosen",
    ),
    'no_device': FailureMode(
        'the card has no PCI address, so its attachments cannot be told from others',
        'look for the card in /sys/bus/pci/devices; zc_doctor checks it',
    ),
    'not_attached': FailureMode(
        'the runtime maps or copies the frame instead of importing it, or imports another buffer',
        "look for /dmabuf: lines in /proc/PID/maps of the inference node, and let it import the camera's own descriptor",
    ),
    'unknown_exporter': FailureMode(
        'the camera allocates where nobody expected it',
        'with Argus pass nvbuf-memory-type=4 (CMA); if the memory is fine for your devices, name it with --known-exporter',
    ),
    'not_a_dmabuf': FailureMode(
        'frames lie in plain memory (memfd), which no device can import',
        'let the capture node use dma-bufs (heap dma_heap/… or the camera\'s own buffers); zc_doctor tells which heaps there are',
    ),
    'not_imported': FailureMode(
        'the driver never saw the buffer that was submitted, or saw another one',
        'dmesg | grep axl; strace -f -e trace=ioctl -p PID; compare the ioctl numbers of driver and package (parameter axl_ioctls)',
    ),
    'imports_differ': FailureMode(
        'buffers are imported again though the cache is on, or one import serves several frames, or none, though it is off',
        'does the camera open new buffers while it runs (other inodes in every frame)? Otherwise look at parameter import_cache',
    ),
    'imports_kept': FailureMode(
        'imports are not given back, so the card runs out of addresses, and the memory of old buffers is never free',
        'look at release_errors in /diagnostics of the inference node, and at dmesg; otherwise set import_cache to true and report it',
    ),
    'submits_differ': FailureMode(
        "the driver's jobs and the node's frames are not the same",
        'look for other programs that use the card, and for lost frames in /diagnostics of the inference node',
    ),
    'mapped': FailureMode(
        'a program has frames mapped, so its CPU can read them',
        'end that program, or let it take frames as an importer does; in the nodes use no observer that maps frames',
    ),
    'was_mapped': FailureMode(
        'a program mapped frames for a moment',
        "find who by the events in trace.txt; a camera or consumer that calls map() on frames does this",
    ),
    'mapped_before': FailureMode(
        'a program mapped frames while the measurement was being set up',
        "find who by the events in trace.txt and end that program, or measure once more",
    ),
    'unseen_producer': FailureMode(
        'frames come from a node that was not measured, so what it maps and copies is not known',
        "measure all nodes of the pipeline: name the capture node's process with --pid, too, or leave --pid out; a node that has no frame "
        'log says why in its own',
    ),
    'backing_memory': FailureMode(
        "udmabuf makes frames of a memfd's pages, and a sealed memfd as large or larger is in use: whoever maps it can read them unseen",
        'end that program, or let the camera use another heap (dma_heap/system)',
    ),
    'pinned_pages': FailureMode(
        'a program that once mapped frames may have kept their pages, in a pipe or for io_uring: nobody can tell which pages these are',
        "end that program, or whatever reads the pipe too slowly, and measure once more",
    ),
    'copied': FailureMode(
        'pixels are copied: often a converter that sits in the pipeline because format, colour range, rate or size differ on its two sides',
        'make the settings of both sides the same; look at conversions and rung in /diagnostics',
    ),
    'booked': FailureMode(
        'the nodes themselves count passes over pixels',
        "end plain sensor_msgs/Image subscribers of the topic (RViz, rosbag2), and use a camera and an accelerator that are copy-free",
    ),
    'hot_copies': FailureMode(
        'a node spends its time copying: nvvidconv or another converter changes format or colour space',
        'make caps on both sides identical: format, colour range, rate, width, height',
    ),
    'slow_fences': FailureMode(
        'the card is busy, or its PCIe link is slower than it should be',
        'lspci -vvv -d 1f9d:1100 | grep LnkSta must show Speed 8GT/s and Width x4; zc_doctor checks it',
    ),
    'lost_events': FailureMode(
        "the kernel's trace lost events, or has lines that nobody can read",
        'measure for a shorter time, or stop what else makes fences on this machine',
    ),
    'left_out': FailureMode('it was left out by --no-memmove-probe', 'run once more without this option'),
}  # fmt: skip

#: A wait for a fence above it is told, though it breaks no invariant.
SLOW_FENCE_MS = 50.0


def advice(mode: str) -> str:
    """The next step of a row."""
    return FAILURE_MODES[mode].next_step
