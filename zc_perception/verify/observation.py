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
What was seen of a running system in one window of time.

This is plain data and the input of the invariants.
:class:`~zc_perception.verify.measurement.Measurement` fills it in; nothing else changes it.
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
    """Say whether a capture node names its camera's device: a pipeline or libcamera does not."""
    return str(facts.get('device', '')).startswith('/dev/')


def time_of(record: FrameRecord) -> int:
    """Return the moment that decides whether a frame belongs to a window."""
    return record.submitted_ns or record.published_ns or record.done_ns


@dataclass
class NodeView:
    """
    One node.

    :ivar before: its facts at the window's begin.
    :ivar after: the first facts that it wrote when the window had ended.
    :ivar records: all records that were read, also from before and after the window.
    :ivar lost: records that were overwritten before they were read.
    :ivar ended_ns: when it was seen to have ended, before it had told what it did in the window;
        CLOCK_MONOTONIC, 0: it lasted.
    :ivar described: whether the node wrote *after* when the window had ended.
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
        """Whether its counters cover the whole window."""
        return self.described and not self.ended_ns

    @property
    def accelerator(self) -> str:
        """The accelerator of an inference node."""
        return str(self.after.get('accelerator', ''))

    @property
    def imports(self) -> bool:
        """Whether its accelerator's driver imports frames, and the kernel's trace shows it."""
        return self.accelerator in traced().drivers

    @property
    def cached(self) -> bool:
        """Whether it imports each buffer only once."""
        return bool(self.after.get('import_cache', True))

    def grown(self, name: str) -> int:
        """Return by how much a counter among the facts grew during the window."""
        return int(self.after.get(name, 0)) - int(self.before.get(name, 0))

    def copies(self) -> dict[str, int]:
        """Return copies that the ledger counted between *before* and *after*, by reason."""
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

    :ivar start_ns: the window, CLOCK_MONOTONIC.
    :ivar snapshots: looks at ``bufinfo``; empty: unreadable.
    :ivar trace: kernel events since before the window; ``None``: unreadable.
    :ivar event_sources: by event, how it was recorded.
    :ivar process_of: by thread, the node's process.
    :ivar exporters: by inode, from whatever could be read.
    :ivar dmabufs: inodes of frames that are dma-bufs; *memfds*: (st_dev, inode) of frames that are
        not.
    :ivar camera_rdevs: device numbers of the cameras.
    :ivar mappings: mappings of frames that were found, each once.
    :ivar scans: complete looks at the maps of all processes.
    :ivar copies: large copies; ``None``: not watched.
    :ivar shares: samples; ``None``: not sampled.
    :ivar unreadable: by topic (``bufinfo``, ``maps``, ``trace``, ``memmove``, ``sampling``,
        ``exporters``, ``frame log``), what could not be read.
    :ivar copy_calls: calls of memmove and memcpy that the probes met, of any size and process.
    :ivar own_cpu_s: CPU time that watching took.
    :ivar lost_cameras: paths of cameras whose number could not be found.
    :ivar backing: memfds of which udmabuf's frames may be made, and the processes that have them:
        lines.
    :ivar looked_ns: when the first look at the maps of all processes began; 0: there was none
        before the window.
    :ivar pins: pipes and rings that may hold pages of frames without a mapping, at either end of
        the window: lines.
    :ivar any_camera: whether frames lie in a video device's buffers of which no node says which
        device that is.
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
        """Note what could not be read, each once."""
        told = self.unreadable.setdefault(topic, []) if unreadable else []
        told += [one for one in unreadable if one not in told]

    def within(self, time_ns: int) -> bool:
        """Say whether a moment lies in the window."""
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
        Return how many frames each inference node has from cameras that are not watched.

        The counts are by the node's name. Such a frame's buffers are in no pool of a watched
        capture node, and in none of its records. Frames that were published before the window
        don't count: their pool may be gone.
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
        """Return the inodes of the frames that any node was done with in the window."""
        return {
            inode
            for node in self.nodes
            for record in node.records
            if self.within(time_of(record))
            for inode in record.inodes
        }

    @property
    def lost_records(self) -> int:
        """Return the number of frames of which nothing is known."""
        return sum(node.lost for node in self.nodes)

    def why(self, *topics: str) -> list[Unreadable]:
        """Say what could not be read about these topics."""
        return [one for topic in topics for one in self.unreadable.get(topic, ())]
