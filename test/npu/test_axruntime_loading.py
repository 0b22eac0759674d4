"""What is said of a dma-heap that the runtime's tensors can't be in."""

from __future__ import annotations

import errno
import os

import pytest

from zc_perception.errors import AllocationError
from zc_perception.memory.heaps import open_heap
from zc_perception.npu.axruntime.worker import why_no_heap


def refused(number: int) -> AllocationError:
    error = AllocationError("heap 'dma_heap/system' can't be opened; use heap: auto")
    error.__cause__ = OSError(number, os.strerror(number))
    return error


@pytest.mark.parametrize(
    ('number', 'words'),
    [
        (errno.ENOENT, ['there is no /dev/dma_heap/system', 'CONFIG_DMABUF_HEAPS_SYSTEM', '--device /dev/dma_heap/system']),
        (errno.EACCES, ["/dev/dma_heap/system can't be used: Permission denied", 'udev rule', '--device /dev/dma_heap/system']),
        (errno.EPERM, ["/dev/dma_heap/system can't be used: Operation not permitted", 'udev rule', '--device /dev/dma_heap/system']),
    ],
)
def test_the_node_and_what_it_needs_are_named_and_not_the_camera_s_parameter(number: int, words: list[str]) -> None:
    message = why_no_heap('dma_heap/system', refused(number))
    assert all(word in message for word in words) and 'heap: auto' not in message and '\n' not in message


def test_another_reason_is_said_as_it_is() -> None:
    assert why_no_heap('dma_heap/system', AllocationError('no memory')) == "/dev/dma_heap/system can't be used: no memory"


def test_a_heap_that_is_not_there_is_told_apart() -> None:
    with pytest.raises(AllocationError) as caught:
        open_heap('dma_heap/nowhere')
    assert why_no_heap('dma_heap/nowhere', caught.value).startswith('there is no /dev/dma_heap/nowhere; ')
