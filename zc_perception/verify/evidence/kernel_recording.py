"""Which events of the kernel are recorded, by the best means that this kernel has.

What dma-buf does is known by its tracepoints (from about 7.0), else by probes that know the arguments' types (BTF, from about 6.5), else
by the function tracer, which counts calls but tells no buffer. Everything has the names of the tracepoints.

Source: include/trace/events/dma_buf.h, Documentation/trace/fprobetrace.rst.
"""

from __future__ import annotations

from pathlib import Path

from zc_perception.verify.evidence.kernel_event import Trace, parse_trace
from zc_perception.verify.evidence.processes import PROC
from zc_perception.verify.evidence.tracefs import TRACING, TraceInstance, open_instance
from zc_perception.verify.evidence.unreadable import Unreadable

TRACEPOINT, PROBE, FUNCTION = 'tracepoint', 'probe', 'function tracer'
ATTACH, DETACH, MMAP, EXPORT, VIDEO_MMAP = (
    'dma_buf_dynamic_attach', 'dma_buf_detach', 'dma_buf_mmap_internal', 'dma_buf_export', 'vb2_mmap',
)  # fmt: skip
FORK = 'sched_process_fork'
FENCES = ('dma_fence_init', 'dma_fence_emit', 'dma_fence_signaled', 'dma_fence_wait_start', 'dma_fence_wait_end', 'dma_fence_destroy')
IMPORT, RELEASE, SUBMIT, COMPLETE = 'axl_dmabuf_import', 'axl_dmabuf_release', 'axl_submit', 'axl_complete'
DRIVER = (IMPORT, RELEASE, SUBMIT, COMPLETE)

_INODE = 'ino=dmabuf->file->f_inode->i_ino'
_DEVICE = 'dev_name=dev->kobj.name:string'
# The best first. At its return the result is known; kernels before 6.9 give no arguments there.
_PROBES = {
    ATTACH: (f'{ATTACH}%return {_INODE} {_DEVICE} result=$retval:x64', f'{ATTACH} {_INODE} {_DEVICE}'),
    DETACH: (f'{DETACH} {_INODE} dev_name=attach->dev->kobj.name:string',),
    MMAP: (f'{MMAP} ino=file->f_inode->i_ino',),
    EXPORT: (f'{EXPORT}%return ino=$retval->file->f_inode->i_ino exp_name=$retval->exp_name:string',),
}
_VIDEO_PROBE = f'{VIDEO_MMAP} rdev=vma->vm_file->f_inode->i_rdev:u32'
_FUNCTIONS = (
    'dma_buf_attach', ATTACH, DETACH, 'dma_buf_map_attachment', 'dma_buf_unmap_attachment', EXPORT, 'dma_buf_fd', MMAP, VIDEO_MMAP,
)  # fmt: skip
_NEEDED = (ATTACH, DETACH, MMAP)
_INITIAL_PID_NAMESPACE = 'pid:[4026531836]'
_NEWER = 'use a kernel from 6.5 on with BTF (CONFIG_DEBUG_INFO_BTF) and FPROBE_EVENTS'


class KernelRecording:
    """A running record of the kernel's events. It owns a :class:`TraceInstance`, and uses it in this order: :meth:`begin`, :meth:`drain`
    again and again, :meth:`stop`, :meth:`trace`, :meth:`close`.

    :ivar instance: where it is.
    :ivar sources: by event, how it is recorded; an event that is not in it can't be.
    :ivar unreadable: what can't be recorded.
    """

    def __init__(self, instance: TraceInstance) -> None:
        self.instance = instance
        self.sources: dict[str, str] = {}
        self.unreadable: list[Unreadable] = []
        self._chunks: list[bytes] = []
        self._failed: Unreadable | None = None
        self._lost = 0

    def begin(self, video: bool = True) -> None:
        """Install and enable everything, each once, then record.

        :param video: whether mappings of video devices matter: there are some.
        """
        for system, events in (('axl', DRIVER), ('dma_fence', FENCES), ('sched', (FORK,))):
            absent = [event for event in events if not self._tracepoint(system, event)]
            if absent:
                self.unreadable.append(_absent_events(system, absent))
        self._dma_buf_events()
        if video and VIDEO_MMAP not in self.sources and not self._video_probe():
            step = 'load the camera before zc_verify starts, so that its module can be probed'
            self.unreadable.append(Unreadable(VIDEO_MMAP, 'mappings of video devices are not recorded', step))
        self.instance.start()

    def _tracepoint(self, system: str, event: str) -> bool:
        try:
            if not self.instance.has(f'{system}/{event}'):
                return False
            self.instance.enable(f'{system}/{event}')
        except OSError:
            return False
        self.sources[event] = TRACEPOINT
        return True

    def _dma_buf_events(self) -> None:
        for event in _PROBES:
            if not self._tracepoint('dma_buf', event):
                self._probe(event, _PROBES[event])
        missing = [event for event in _NEEDED if event not in self.sources]
        if not missing:
            return
        try:
            known = self.instance.trace_functions([name for name in _FUNCTIONS if name not in self.sources])
        except OSError as error:
            reason = f'no tracepoint, probe or function tracer ({error.strerror})'
            self.unreadable.append(Unreadable(', '.join(missing), reason, _NEWER))
            return
        self.sources |= {event: FUNCTION for event in (*missing, VIDEO_MMAP) if event in known}
        reason = 'the function tracer counts calls but does not tell which buffer'
        self.unreadable.append(Unreadable(', '.join(missing), reason, _NEWER))

    def _probe(self, event: str, definitions: tuple[str, ...]) -> bool:
        for definition in definitions:
            try:
                self.instance.install(f'f:{self.instance.group}/{event} {definition}')
                self.instance.enable(f'{self.instance.group}/{event}')
            except OSError:
                continue
            self.sources[event] = PROBE
            return True
        return False

    def _video_probe(self) -> bool:
        if self._probe(VIDEO_MMAP, (_VIDEO_PROBE, VIDEO_MMAP)):
            return True
        try:
            self.instance.install(f'p:{self.instance.group}/{VIDEO_MMAP} {VIDEO_MMAP}')
            self.instance.enable(f'{self.instance.group}/{VIDEO_MMAP}')
        except OSError:
            return False
        self.sources[VIDEO_MMAP] = PROBE
        return True

    def drain(self) -> None:
        """Take what was recorded out of the kernel's buffer."""
        if self._failed is not None:
            return
        try:
            chunk = self.instance.drain()
        except OSError as error:
            self._failed = Unreadable('trace', f'trace_pipe: {error.strerror}', 'see the kernel log (dmesg)')
            self.unreadable.append(self._failed)
            return
        if chunk:
            self._chunks.append(chunk)

    def stop(self) -> None:
        """Record no more, and take the rest."""
        try:
            self.instance.stop()
            self.drain()
            self._lost = self.instance.lost()
        except OSError as error:
            self.unreadable.append(Unreadable('trace', f'{self.instance.path}: {error.strerror}', 'see the kernel log (dmesg)'))
            self._lost += 1

    def text(self) -> str:
        """The trace, as the kernel wrote it."""
        return b''.join(self._chunks).decode(errors='replace')

    def trace(self) -> Trace:
        """The trace, in order. What the buffer lost counts as lost, and if it could not be read, something is."""
        # A thread's name may have any other separator of lines in it.
        trace = parse_trace(self.text().split('\n'))
        trace.lost = max(trace.lost, self._lost, 1 if self._failed is not None else 0)
        return trace

    def close(self) -> list[Unreadable]:
        """Take everything down; what could not be."""
        return self.instance.close()


def _absent_events(system: str, events: list[str]) -> Unreadable:
    steps = {
        'axl': "use a metis driver with the tracepoints of axl_trace.h; without them the driver's imports and submits can't be seen",
        'dma_fence': 'use a kernel with CONFIG_DMA_SHARED_BUFFER and CONFIG_FTRACE',
        'sched': 'use a kernel with CONFIG_FTRACE',
    }
    return Unreadable(f'events {system}:{{{",".join(events)}}}', 'this kernel does not have them', steps[system])


def open_recording(tracing: Path = TRACING, proc: Path = PROC, buffer_kb: int = 4096) -> KernelRecording | Unreadable:
    """A record that has not begun."""
    try:
        # The trace has the numbers that threads have in the first namespace.
        namespace = (proc / 'self' / 'ns' / 'pid').readlink().name
    except OSError:
        namespace = _INITIAL_PID_NAMESPACE
    if namespace != _INITIAL_PID_NAMESPACE:
        step = 'run it on the host, or start the container with --pid=host'
        return Unreadable('tracefs', "this process has a pid namespace of its own, so the trace's threads can't be told", step)
    instance = open_instance(tracing, buffer_kb)
    return instance if isinstance(instance, Unreadable) else KernelRecording(instance)
