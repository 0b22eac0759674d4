"""A bounded queue of frames between two threads, which a consumer can poll(2) together with its fences."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from zc_perception.frame import Frame
from zc_perception.memory.owned_fd import OwnedFd


class FrameQueue:
    """Keep-last: when full, the oldest frame is released and counted, so that the newest wins. Any number of threads.

    :param depth: frames kept; ``None`` keeps all, which the producer's pool bounds.
    :param on_drop: told of each dropped frame, after its release.
    """

    def __init__(self, depth: int | None, on_drop: Callable[[], None] | None = None) -> None:
        self._frames: deque[Frame] = deque()
        self._depth = depth
        self._on_drop = on_drop
        self._lock = threading.Lock()
        self._event = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._closed = False
        self.dropped = 0

    def fileno(self) -> int:
        """Readable while the queue is not empty, and once it is closed."""
        return self._event.fileno()

    @property
    def closed(self) -> bool:
        """Whether it takes no more frames; it polls readable then."""
        return self._closed

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: Frame) -> None:
        """Take over a frame's lease. Never blocks."""
        overflow = None
        with self._lock:
            if self._closed:
                overflow = frame
            else:
                if self._depth is not None and len(self._frames) >= self._depth:
                    overflow = self._frames.popleft()
                    self.dropped += 1
                self._frames.append(frame)
                os.eventfd_write(self._event.fileno(), 1)
        if overflow is not None:
            overflow.release()
            if self._on_drop is not None:
                self._on_drop()

    def get(self, timeout_s: float = 0.0) -> Frame | None:
        """The oldest frame, whose lease is the caller's now, or ``None`` after *timeout_s*."""
        deadline = time.monotonic() + timeout_s
        while True:
            frame = self._pop()
            remaining = deadline - time.monotonic()
            if frame is not None or remaining <= 0 or self._closed:
                return frame
            poller = select.poll()
            poller.register(self._event.fileno(), select.POLLIN)
            poller.poll(remaining * 1000)

    def _pop(self) -> Frame | None:
        with self._lock:
            if not self._frames:
                return None
            frame = self._frames.popleft()
            if not self._frames and not self._closed:
                os.eventfd_read(self._event.fileno())
            return frame

    def close(self) -> None:
        """Release what is queued; later frames are released at once. The descriptor is closed with the last reference."""
        with self._lock:
            self._closed = True
            frames = list(self._frames)
            self._frames.clear()
            # Wakes a consumer that is polling.
            os.eventfd_write(self._event.fileno(), 1)
        for frame in frames:
            frame.release()
