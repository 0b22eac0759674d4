"""Fences: eventfd ones for real, sync_files against a scripted SYNC_IOC_FILE_INFO."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import threading
import time

import pytest

from zc_perception.errors import AcceleratorError
from zc_perception.memory import fence as fence_module
from zc_perception.memory.fence import EventFence, SyncFile
from zc_perception.memory.owned_fd import OwnedFd

pytestmark = pytest.mark.usefixtures('no_fd_leak')


def test_a_fence_is_pending_until_signalled() -> None:
    fence = EventFence()
    assert not fence.wait(0.0)
    with pytest.raises(AcceleratorError, match='has not signalled'):
        fence.check()
    fence.signal()
    assert fence.wait(0.0) and fence.wait(0.0), 'looking must not consume the signal'
    fence.check()
    fence.close()


def test_an_error_signals_too_and_is_found_by_check() -> None:
    fence = EventFence()
    cause = ValueError('bad model')
    fence.signal(cause)
    assert fence.wait(0.0)
    for _ in range(2):
        with pytest.raises(AcceleratorError, match='the job failed: bad model') as caught:
            fence.check()
        assert caught.value.__cause__ is cause
    fence.close()


def test_a_fence_can_be_polled_with_other_descriptors() -> None:
    fence = EventFence()
    poller = select.poll()
    poller.register(fence.fileno(), select.POLLIN)
    assert poller.poll(0) == []
    fence.signal()
    assert poller.poll(0) == [(fence.fileno(), select.POLLIN)]
    fence.close()


def test_a_signal_from_another_thread_ends_the_wait() -> None:
    fence = EventFence()
    signaller = threading.Timer(0.02, fence.signal)
    signaller.start()
    assert fence.wait(10.0)
    signaller.join()
    fence.close()


def test_a_wait_is_bounded_and_not_cut_short() -> None:
    fence = EventFence()
    started = time.monotonic()
    assert not fence.wait(0.0104)
    assert time.monotonic() - started >= 0.0104
    fence.close()


def test_signalling_a_closed_fence_does_nothing() -> None:
    fence = EventFence()
    fence.close()
    fence.signal(ValueError())
    fence.close()


class FenceInfo(ctypes.Structure):
    """``struct sync_fence_info`` of sync_file.h."""

    _fields_ = (
        ('obj_name', ctypes.c_char * 32),
        ('driver_name', ctypes.c_char * 32),
        ('status', ctypes.c_int32),
        ('flags', ctypes.c_uint32),
        ('timestamp_ns', ctypes.c_uint64),
    )


class FileInfo(ctypes.Structure):
    """``struct sync_file_info`` of sync_file.h."""

    _fields_ = (
        ('name', ctypes.c_char * 32),
        ('status', ctypes.c_int32),
        ('flags', ctypes.c_uint32),
        ('num_fences', ctypes.c_uint32),
        ('pad', ctypes.c_uint32),
        ('sync_fence_info', ctypes.c_uint64),
    )


class SyncDouble:
    """The kernel's side of SYNC_IOC_FILE_INFO, as its header documents it."""

    def __init__(self, status: int, *timestamps: int) -> None:
        self.status = status
        self.timestamps = timestamps

    def __call__(self, fd: int, request: int, argument: bytearray) -> int:
        assert request == 3 << 30 | ctypes.sizeof(FileInfo) << 16 | ord('>') << 8 | 4
        info = FileInfo.from_buffer(argument)
        if info.flags or info.pad:
            raise OSError(errno.EINVAL, 'flags')
        if info.num_fences:
            assert info.num_fences == len(self.timestamps)
            table = (FenceInfo * info.num_fences).from_address(info.sync_fence_info)
            for entry, timestamp in zip(table, self.timestamps, strict=True):
                entry.timestamp_ns, entry.status = timestamp, self.status
        info.status, info.num_fences = self.status, len(self.timestamps)
        return 0


def sync_file(monkeypatch: pytest.MonkeyPatch, status: int, *timestamps: int) -> SyncFile:
    monkeypatch.setattr(fence_module.fcntl, 'ioctl', SyncDouble(status, *timestamps))
    return SyncFile(OwnedFd(os.eventfd(int(status != 0))))


def test_a_sync_file_s_time_is_that_of_its_last_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    fence = sync_file(monkeypatch, 1, 5_000_000_000, 7_000_000_001, 6_000_000_000)
    assert fence.info() == (1, 7_000_000_001)
    assert fence.wait(0.0)
    fence.check()
    fence.close()


def test_a_sync_file_s_error_is_found_although_it_polls_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    fence = sync_file(monkeypatch, -errno.EIO, 1)
    assert fence.wait(0.0)
    with pytest.raises(AcceleratorError, match=rf'error {errno.EIO} \(Input/output error\)'):
        fence.check()
    fence.close()


def test_a_pending_sync_file_has_not_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    fence = sync_file(monkeypatch, 0, 0)
    assert not fence.wait(0.0)
    with pytest.raises(AcceleratorError, match='has not signalled'):
        fence.check()
    fence.close()


def test_a_sync_file_without_fences_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fence = sync_file(monkeypatch, 1)
    assert fence.info() == (1, 0)
    fence.close()
