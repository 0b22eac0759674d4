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

"""A tracefs of plain files, which reacts to writes and refuses as ftrace's documents say."""

from __future__ import annotations

from collections.abc import Iterable
import errno
from pathlib import Path
import shutil

import pytest

EVENTS = {
    'axl': ('axl_dmabuf_import', 'axl_dmabuf_release', 'axl_submit', 'axl_complete'),
    'dma_fence': (
        'dma_fence_init',
        'dma_fence_emit',
        'dma_fence_signaled',
        'dma_fence_wait_start',
        'dma_fence_wait_end',
        'dma_fence_destroy',
    ),
    'sched': ('sched_process_fork', 'sched_switch'),
}
DMA_BUF = (
    'dma_buf_dynamic_attach',
    'dma_buf_detach',
    'dma_buf_mmap_internal',
    'dma_buf_export',
    'dma_buf_fd',
)


class FakeTracefs:
    """
    A kernel with some abilities.

    :param events: its tracepoints by system.
    :param probes: what definitions of probes may contain: ``f:``, ``%return``, ``p:``, a
        function's name…
    :param functions: those that the function tracer supports.
    """

    def __init__(
        self,
        root: Path,
        patch: pytest.MonkeyPatch,
        *,
        events: dict[str, Iterable[str]] | None = None,
        refused: Iterable[str] = (),
        functions: Iterable[str] = DMA_BUF,
        tracers: bool = True,
    ) -> None:
        self.root = root / 'tracing'
        self.writes: list[tuple[str, str]] = []
        self.refuse_writes = False
        self._events = EVENTS if events is None else events
        self._refused = tuple(refused)
        self._functions = tuple(functions) if tracers else ()
        (self.root / 'instances').mkdir(parents=True)
        (self.root / 'options').mkdir()
        (self.root / 'options' / 'record-cmd').write_text('1\n')
        (self.root / 'dynamic_events').write_text('')
        real_mkdir, real_rmdir = Path.mkdir, Path.rmdir

        def mkdir(
            path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False
        ) -> None:
            if path.parent == self.root / 'instances' and self.refuse_writes:
                raise PermissionError(errno.EACCES, 'Permission denied', str(path))
            real_mkdir(path, mode, parents, exist_ok)
            if path.parent == self.root / 'instances':
                self._fill(path)

        def rmdir(path: Path) -> None:
            if path.parent == self.root / 'instances':
                assert (path / 'events' / 'enable').read_text() == '0', 'events are enabled'
                shutil.rmtree(path)
            else:
                real_rmdir(path)

        patch.setattr(Path, 'mkdir', mkdir)
        patch.setattr(Path, 'rmdir', rmdir)
        patch.setattr('zc_perception.verify.evidence.kernel_events.write_control', self.write)

    def _fill(self, instance: Path) -> None:
        record = (self.root / 'options' / 'record-cmd').read_text().strip()
        for name, text in (
            ('tracing_on', '1'),
            ('trace_clock', '[local] global mono'),
            ('buffer_size_kb', '7 (expanded: 1408)'),
            ('set_ftrace_filter', ''),
            ('current_tracer', 'nop'),
            ('trace_pipe', ''),
            ('inherited_record_cmd', record),
        ):
            (instance / name).write_text(text)
        for cpu in range(2):
            folder = instance / 'per_cpu' / f'cpu{cpu}'
            folder.mkdir(parents=True)
            (folder / 'stats').write_text(
                'entries: 0\noverrun: 0\ncommit overrun: 0\nbytes: 0\ndropped events: 0\nread '
                'events: 5\n'
            )
        for system, names in self._events.items():
            for name in names:
                self._event(instance, system, name)
        (instance / 'events' / 'enable').write_text('0')

    @staticmethod
    def _event(instance: Path, system: str, name: str) -> None:
        folder = instance / 'events' / system / name
        folder.mkdir(parents=True)
        (folder / 'enable').write_text('0')
        (folder / 'filter').write_text('none')

    def write(self, path: Path, text: str, *, append: bool = False) -> None:
        name = path.relative_to(self.root).as_posix()
        if self.refuse_writes:
            raise PermissionError(errno.EACCES, 'Permission denied', str(path))
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, 'No such file or directory', str(path))
        self.writes.append((name, text))
        if name == 'dynamic_events':
            self._dynamic(text.strip())
        elif path.name == 'set_ftrace_filter':
            if text not in self._functions:
                raise OSError(errno.EINVAL, 'Invalid argument', str(path))
            path.write_text(path.read_text() + text + '\n')
        elif path.name == 'enable' and path.parent.name == 'events':
            for one in path.parent.glob('*/*/enable'):
                one.write_text('0')
            path.write_text('0')
        else:
            path.write_text(text)
            if path.name == 'enable':
                instance = (
                    self.root / 'instances' / path.relative_to(self.root / 'instances').parts[0]
                )
                on = any(one.read_text() == '1' for one in instance.glob('events/*/*/enable'))
                (instance / 'events' / 'enable').write_text('X' if on else '0')

    def _dynamic(self, definition: str) -> None:
        path = self.root / 'dynamic_events'
        lines = path.read_text().splitlines()
        if definition.startswith('-:'):
            kept = [
                line for line in lines if line.split(' ')[0].partition(':')[2] != definition[2:]
            ]
            if kept == lines:
                raise FileNotFoundError(errno.ENOENT, 'No such file or directory', str(path))
            group, name = definition[2:].split('/')
            for instance in (self.root / 'instances').iterdir():
                folder = instance / 'events' / group / name
                if folder.exists():
                    assert (folder / 'enable').read_text() == '0', 'the probe is in use'
                    shutil.rmtree(folder)
            path.write_text(''.join(f'{line}\n' for line in kept))
            return
        if any(word in definition for word in self._refused):
            raise OSError(errno.EINVAL, 'Invalid argument', str(path))
        group, name = definition.split(' ')[0].partition(':')[2].split('/')
        path.write_text(''.join(f'{line}\n' for line in [*lines, definition]))
        for instance in (self.root / 'instances').iterdir():
            self._event(instance, group, name)

    def enabled(self, instance: Path) -> set[str]:
        """Return ``SYSTEM/NAME`` of the recorded events."""
        return {
            one.parent.relative_to(instance / 'events').as_posix()
            for one in instance.glob('events/*/*/enable')
            if one.read_text() == '1'
        }

    @property
    def clean(self) -> bool:
        """Return whether no instance, probe or event is left."""
        nothing = (
            not list((self.root / 'instances').iterdir())
            and (self.root / 'dynamic_events').read_text() == ''
        )
        return nothing and (self.root / 'options' / 'record-cmd').read_text().strip() == '1'
