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
The observation of a running system in one window of time.

An :class:`Observation` is plain data; the checks of the invariants read nothing else. Only
:class:`~zc_perception.verify.measurement.Measurement` writes to it.
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

#: What the names of exporters of video devices' buffers begin with.
VIDEO_EXPORTER = 'videobuf2'


def names_device(facts: Mapping[str, Any]) -> bool:
    """Return whether a capture node's facts name its camera's device."""
    return str(facts.get('device', '')).startswith('/dev/')


def time_of(record: FrameRecord) -> int:
    """Return the frame's time that decides whether the frame belongs to a window."""
    return record.submitted_ns or record.published_ns or record.done_ns


@dataclass
class NodeView:
    """
    What was seen of one node.

    :ivar before: the node's facts at the beginning of the window.
    :ivar after: the first facts that the node wrote after the window had ended.
    :ivar records: all records that were read, also from before and after the window.
    :ivar lost: the number of records that were overwritten before they were read.
    :ivar ended_ns: when the node was seen to have ended before it had written its facts about the
        window (CLOCK_MONOTONIC); 0: the node lasted.
    :ivar described: whether the node wrote the facts in *after* after the window had ended.
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
        """Whether the node's counters cover the whole window."""
        return self.described and not self.ended_ns

    @property
    def accelerator(self) -> str:
        """The accelerator of an inference node."""
        return str(self.after.get('accelerator', ''))

    @property
    def imports(self) -> bool:
        """Whether the accelerator's driver imports frames and shows this by tracepoints."""
        return self.accelerator in traced().drivers

    @property
    def cached(self) -> bool:
        """Whether the node caches imports, so that it imports each buffer only once."""
        return bool(self.after.get('import_cache', True))

    def grown(self, name: str) -> int:
        """Return how much a counter in the facts grew during the window."""
        return int(self.after.get(name, 0)) - int(self.before.get(name, 0))

    def copies(self) -> dict[str, int]:
        """Return the copies that the ledger counted during the window, by reason."""
        before, after = self.before.get('copies', {}), self.after.get('copies', {})
        grown = {
            reason: entry['count'] - before.get(reason, {}).get('count', 0)
            for reason, entry in after.items()
        }
        return {reason: count for reason, count in grown.items() if count}


@dataclass
class Observation:
    """
    All evidence of one window.

    :ivar start_ns: the beginning of the window, CLOCK_MONOTONIC; *end_ns*: its end.
    :ivar snapshots: the looks at ``bufinfo``; empty if it was unreadable.
    :ivar trace: the kernel's events, from before the window on; ``None`` if they were unreadable.
    :ivar event_sources: by event, how it was recorded.
    :ivar process_of: by thread, the process of the node that the thread belongs to.
    :ivar exporters: the buffers' exporters by inode, from all sources that could be read.
    :ivar dmabufs: inodes of the frames' buffers that are dma-bufs; *memfds*: (st_dev, inode) of
        those that are memfds.
    :ivar camera_rdevs: device numbers of the cameras.
    :ivar mappings: the mappings of frames that were found, each once.
    :ivar scans: the number of complete looks at the maps of all processes.
    :ivar copies: the large copies; ``None`` if copies were not watched.
    :ivar shares: the processes' samples; ``None`` if the processors were not sampled.
    :ivar unreadable: by topic (``bufinfo``, ``maps``, ``trace``, ``memmove``, ``sampling``,
        ``exporters``, ``frame log``), what could not be read.
    :ivar copy_calls: the number of calls of memmove and memcpy that the probes met, of any size
        and process.
    :ivar own_cpu_s: the CPU time that ``zc_verify`` itself used, in seconds.
    :ivar lost_cameras: paths of cameras whose number could not be found.
    :ivar backing: lines of text about memfds that udmabuf may have made frames of, and the
        processes that have them.
    :ivar looked_ns: when the first look at the maps of all processes began; 0: there was none
        before the window.
    :ivar pins: lines of text about pipes and rings that may hold pages of frames without a
        mapping, at either end of the window.
    :ivar any_camera: whether frames lie in buffers of a video device that no node names.
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
        """Note a source that could not be read, each only once."""
        told = self.unreadable.setdefault(topic, []) if unreadable else []
        told += [one for one in unreadable if one not in told]

    def within(self, time_ns: int) -> bool:
        """Return whether a moment lies in the window."""
        return self.start_ns <= time_ns <= self.end_ns

    def inference_nodes(self) -> list[NodeView]:
        """Return the nodes that submit frames to a device."""
        return [node for node in self.nodes if node.role == INFERENCE]

    def submitted(self, node: NodeView) -> list[FrameRecord]:
        """Return the frames that a node submitted in the window, in order."""
        wanted = (RecordKind.PROCESSED, RecordKind.FAILED)
        found = [
            record
            for record in node.records
            if record.kind in wanted and record.submitted_ns and self.within(record.submitted_ns)
        ]
        return sorted(found, key=lambda record: record.submitted_ns)

    def all_submitted(self) -> list[tuple[NodeView, FrameRecord]]:
        """Return the frames that all nodes submitted."""
        return [
            (node, record) for node in self.inference_nodes() for record in self.submitted(node)
        ]

    def unseen_frames(self) -> dict[str, int]:
        """
        Return how many frames each inference node got from cameras that are not watched.

        The result is by the inference node's name. The buffers of such a frame are in no pool and
        in no record of a watched capture node. Frames published before the window don't count,
        because their pool may be gone.
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
        """Return the inodes of the frames that some node finished in the window."""
        return {
            inode
            for node in self.nodes
            for record in node.records
            if self.within(time_of(record))
            for inode in record.inodes
        }

    @property
    def lost_records(self) -> int:
        """Return the number of frames whose records were lost."""
        return sum(node.lost for node in self.nodes)

    def why(self, *topics: str) -> list[Unreadable]:
        """Return the sources that could not be read, of these topics."""
        return [one for topic in topics for one in self.unreadable.get(topic, ())]
