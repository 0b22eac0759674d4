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
The evidence that the checks of the invariants read.

It is about the measured time: the time in which zc_verify measures. ``result.json`` calls this
time "window".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zc_perception.npu.kinds import traced
from zc_perception.observe.frame_log import FrameRecord, RecordKind
from zc_perception.verify.evidence import Unreadable
from zc_perception.verify.evidence.buffers import MemoryMapping, Snapshot
from zc_perception.verify.evidence.copies import CopyShare, LargeCopy
from zc_perception.verify.evidence.kernel_events import Trace

CAPTURE, INFERENCE = 'capture', 'inference'

#: The prefix of the names of V4L2's buffer exporters.
VIDEO_EXPORTER = 'videobuf2'


def names_device(facts: Mapping[str, Any]) -> bool:
    """Return whether a capture node's facts name the path of its camera's device."""
    return str(facts.get('device', '')).startswith('/dev/')


def time_of(record: FrameRecord) -> int:
    """
    Return the time that decides whether a frame belongs to the measured time.

    This is the time at which the frame was submitted. If it was not submitted, this is the time at
    which it was published. If it was not published either, this is the time at which it was done.
    """
    return record.submitted_ns or record.published_ns or record.done_ns


@dataclass
class NodeView:
    """
    The evidence about one node, from its frame log.

    A frame log has a record for each frame, and the node's facts: settings and counters.

    :ivar before: the node's facts at the beginning of the measured time.
    :ivar after: the first facts that the node wrote after the end of the measured time.
    :ivar records: all records that were read, also those from before and after the measured
        time.
    :ivar lost: the number of records that were overwritten before they were read.
    :ivar ended_ns: when the node was found to have ended (CLOCK_MONOTONIC), if it ended before it
        wrote *after*; 0: it still ran.
    :ivar described: whether *after* has the counters of the end of the measured time.
    """

    pid: int
    node: str
    role: str
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    records: Sequence[FrameRecord] = ()
    lost: int = 0
    ended_ns: int = 0
    described: bool = True

    def __str__(self) -> str:
        return f'{self.node} (process {self.pid})'

    @property
    def counted(self) -> bool:
        """Whether the node's counters cover the whole measured time."""
        return self.described and not self.ended_ns

    @property
    def accelerator(self) -> str:
        """The name of an inference node's accelerator; empty: the node has none open."""
        return str(self.after.get('accelerator', ''))

    @property
    def imports(self) -> bool:
        """Whether the accelerator's driver imports frames, and has tracepoints for this."""
        return self.accelerator in traced().drivers

    @property
    def cached(self) -> bool:
        """Whether the node caches imports: it then imports each buffer only once."""
        return bool(self.after.get('import_cache', True))

    def grown(self, name: str) -> int:
        """Return how much the counter *name* in the node's facts grew in the measured time."""
        return int(self.after.get(name, 0)) - int(self.before.get(name, 0))

    def copies(self) -> dict[str, int]:
        """Return the copies that the node's ledger counted in the measured time, by reason."""
        before, after = self.before.get('copies', {}), self.after.get('copies', {})
        grown = {
            reason: entry['count'] - before.get(reason, {}).get('count', 0)
            for reason, entry in after.items()
        }
        return {reason: count for reason, count in grown.items() if count}


@dataclass
class Observation:
    """
    All evidence of one measurement.

    :ivar start_ns: the beginning of the measured time, CLOCK_MONOTONIC; *end_ns*: its end.
    :ivar snapshots: the contents of ``bufinfo`` at several times; empty: it was unreadable.
    :ivar trace: the kernel's events, beginning before the measured time; ``None``: none were
        recorded.
    :ivar event_sources: for each event name, how the event was recorded.
    :ivar process_of: by thread id, the process id of the thread's node.
    :ivar exporters: by inode, the exporter of a buffer, from all sources that could be read.
    :ivar dmabufs: inodes of the frames' buffers that are dma-bufs; *memfds*: (st_dev, inode) of
        those that are memfds.
    :ivar camera_rdevs: device numbers of the cameras.
    :ivar mappings: all mappings of frames that the scans found; each mapping is listed once.
    :ivar scans: how often the maps of all processes were read; one such reading is a scan.
    :ivar copies: the large copies by memmove and memcpy; ``None``: copies were not recorded.
    :ivar shares: the share of copying in each process's CPU samples; ``None``: no samples.
    :ivar unreadable: the sources that could not be read, by topic: ``bufinfo``, ``maps``,
        ``trace``, ``memmove``, ``sampling``, ``exporters``, ``frame log``.
    :ivar copy_calls: the number of calls of memmove and memcpy in the watched libraries, of any
        size and by any process; most of these calls are not in the trace.
    :ivar own_cpu_s: the CPU time that ``zc_verify`` itself used, in seconds.
    :ivar lost_cameras: paths of cameras whose device number could not be found.
    :ivar backing: texts about memfds that may be the memory of frames in udmabuf buffers, and
        about the processes that have these memfds.
    :ivar looked_ns: when the first scan began, which is before the measured time; 0: the time of
        the first scan is unknown.
    :ivar pins: texts about pipes and io_urings that may hold pages of frames without a mapping, at
        the beginning or end of the measured time.
    :ivar any_camera: whether frames are in buffers of a video device that no frame log names.
    """

    start_ns: int = 0
    end_ns: int = 0
    nodes: Sequence[NodeView] = ()
    snapshots: Sequence[Snapshot] = ()
    trace: Trace | None = None
    event_sources: Mapping[str, str] = field(default_factory=dict)
    process_of: Mapping[int, int] = field(default_factory=dict)
    exporters: dict[int, str] = field(default_factory=dict)
    dmabufs: frozenset[int] = frozenset()
    memfds: frozenset[tuple[int, int]] = frozenset()
    camera_rdevs: frozenset[int] = frozenset()
    mappings: Sequence[MemoryMapping] = ()
    scans: int = 0
    copies: Sequence[LargeCopy] | None = None
    shares: Sequence[CopyShare] | None = None
    unreadable: dict[str, list[Unreadable]] = field(default_factory=dict)
    copy_calls: int = 0
    own_cpu_s: float = 0.0
    lost_cameras: frozenset[str] = frozenset()
    backing: Sequence[str] = ()
    looked_ns: int = 0
    pins: Sequence[str] = ()
    any_camera: bool = False

    def tell(self, topic: str, *unreadable: Unreadable) -> None:
        """Add sources, each once, to :attr:`unreadable`, under a key such as ``maps``."""
        told = self.unreadable.setdefault(topic, []) if unreadable else []
        told += [one for one in unreadable if one not in told]

    def within(self, time_ns: int) -> bool:
        """Return whether *time_ns* is in the measured time."""
        return self.start_ns <= time_ns <= self.end_ns

    def inference_nodes(self) -> list[NodeView]:
        """Return the nodes that submit frames to a device."""
        return [node for node in self.nodes if node.role == INFERENCE]

    def submitted(self, node: NodeView) -> list[FrameRecord]:
        """Return the frames that a node submitted in the measured time, in order of time."""
        wanted = (RecordKind.PROCESSED, RecordKind.FAILED)
        found = [
            record
            for record in node.records
            if record.kind in wanted and record.submitted_ns and self.within(record.submitted_ns)
        ]
        return sorted(found, key=lambda record: record.submitted_ns)

    def all_submitted(self) -> list[tuple[NodeView, FrameRecord]]:
        """Return each pair of an inference node and a frame it submitted in the measured time."""
        return [
            (node, record) for node in self.inference_nodes() for record in self.submitted(node)
        ]

    def unseen_frames(self) -> dict[str, int]:
        """
        Count, for each inference node by name, the frames that it got from unmeasured nodes.

        The buffers of such a frame are in no pool and no record of a measured capture node. Frames
        published before the measured time don't count, because their pool may no longer exist.
        """
        captures = [node for node in self.nodes if node.role == CAPTURE]
        known = {
            (record.st_dev, inode)
            for node in captures
            for record in node.records
            for inode in record.inodes
        }
        known |= {
            (device, inode)
            for node in captures
            for facts in (node.before, node.after)
            for device, inode in facts.get('pool', ())
        }
        found: dict[str, int] = {}
        for node in self.inference_nodes():
            late = [
                one
                for one in self.submitted(node)
                if (one.published_ns or one.received_ns or one.submitted_ns) >= self.start_ns
            ]
            if count := sum(
                any((one.st_dev, inode) not in known for inode in one.inodes) for one in late
            ):
                found[str(node)] = count
        return found

    def frame_inodes(self) -> set[int]:
        """Return the inodes of the buffers of all frames in the measured time, of all nodes."""
        return {
            inode
            for node in self.nodes
            for record in node.records
            if self.within(time_of(record))
            for inode in record.inodes
        }

    @property
    def lost_records(self) -> int:
        """The number of records that were overwritten before they were read, of all nodes."""
        return sum(node.lost for node in self.nodes)

    def why(self, *topics: str) -> list[Unreadable]:
        """Return the sources under these keys of :attr:`unreadable`, such as ``maps``."""
        return [one for topic in topics for one in self.unreadable.get(topic, ())]
