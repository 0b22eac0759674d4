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
The kernel's view of watched programs: attachments, mappings, trace events.

``zc_verify`` does the same and more for a verdict; this module is independent of the package, so
that it can confirm that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
import re
import threading

from .kernel_api import bufinfo, TRACING, write_control

_MAP_LINE = re.compile(r'^\S+ \S+ \S+ \S+ (\d+)\s+(/dmabuf:|/dev/video)\S*')
_EVENT = re.compile(r'\s(\d+\.\d+): (?:axl_)?(\w+): (.*)$')
_EVENTS = (
    'axl/axl_dmabuf_import',
    'axl/axl_dmabuf_release',
    'axl/axl_submit',
    'axl/axl_complete',
    'dma_fence/dma_fence_signaled',
)


def cpu_mappings(inodes: Iterable[int]) -> list[str]:
    """Return lines of all processes' ``maps`` that show these dma-bufs, or a video device."""
    wanted = set(inodes)
    found = []
    for maps in Path('/proc').glob('[0-9]*/maps'):
        # Read line by line: large copies in this process may count against it.
        with suppress(OSError), maps.open(errors='replace') as lines:  # a process may have ended
            for line in lines:
                match = _MAP_LINE.match(line)
                if match and (match[2] == '/dev/video' or int(match[1]) in wanted):
                    found.append(f'{maps.parent.name}: {line.rstrip()}')
    return found


@dataclass
class Watch:
    """
    Reads the kernel's own lists again and again while frames flow.

    :param find_inodes: returns the inodes of the frames' buffers that exist.
    :ivar attached: by inode, all devices that were ever listed.
    :ivar exporters: by inode.
    """

    find_inodes: Callable[[], set[int]]
    inodes: set[int] = field(default_factory=set)
    looks: int = 0
    attached: dict[int, set[str]] = field(default_factory=dict)
    exporters: dict[int, str] = field(default_factory=dict)
    mappings: list[str] = field(default_factory=list)

    def look(self) -> None:
        self.looks += 1
        self.inodes |= self.find_inodes()
        for inode, info in bufinfo().items():
            if inode in self.inodes:
                self.attached.setdefault(inode, set()).update(info.attached)
                self.exporters[inode] = info.exporter
        self.mappings += [line for line in cpu_mappings(self.inodes) if line not in self.mappings]

    @contextmanager
    def running(self, period_s: float) -> Iterator[None]:
        """Watch in a thread of its own."""
        stop = threading.Event()

        def loop() -> None:
            while not stop.wait(period_s):
                self.look()

        thread = threading.Thread(target=loop, name='evidence')
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@contextmanager
def recording() -> Iterator[None]:
    """
    Record the axl events and the signals of fences, from an empty buffer.

    The events stay enabled: each switch rewrites the kernel's code, which QEMU's other cores may
    be running.
    """
    write_control(TRACING / 'tracing_on', '0')
    (TRACING / 'trace').write_text('')
    if (TRACING / 'trace_clock').read_text().find('[mono]') < 0:
        write_control(TRACING / 'trace_clock', 'mono')
        write_control(TRACING / 'buffer_size_kb', '16384')
        write_control(TRACING / 'options/record-cmd', '0')  # see kernel_api.tracing()
    for event in _EVENTS:
        if (TRACING / 'events' / event / 'enable').read_text().strip() != '1':
            write_control(TRACING / 'events' / event / 'enable', '1')
    write_control(TRACING / 'tracing_on', '1')
    try:
        yield
    finally:
        write_control(TRACING / 'tracing_on', '0')


def trace_text() -> str:
    return (TRACING / 'trace').read_text(errors='replace')


def event_counts(trace: str) -> Counter[str]:
    return Counter(match[2] for match in map(_EVENT.search, trace.splitlines()) if match)


def inodes_of(trace: str, event: str) -> list[int]:
    lines = (line for line in trace.splitlines() if f'{event}: ' in line)
    return [
        int(match[1]) for match in (re.search(r'\binode=(\d+)', line) for line in lines) if match
    ]
