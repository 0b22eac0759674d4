"""Frames of another process for whoever has no thread to fetch them: executor callbacks."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

from zc_perception.frame import Frame
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.memory.owned_fd import OwnedFd


class SharedMemoryReceiver:
    """One thread that keeps a client connected and hands its frames on.

    :param client: owned from here on.
    :param deliver: takes over each frame's lease, such as ``FrameQueue.put`` followed by a notification; must not block.
    :param on_state: told, on the thread, whenever the connection comes or goes, with the reason for its end.
    """

    def __init__(
        self, client: SharedMemoryClient, deliver: Callable[[Frame], None], on_state: Callable[[bool, str], None] | None = None
    ) -> None:
        self.client = client
        self.failures = 0
        self.last_failure = ''
        self._deliver = deliver
        self._on_state = on_state
        self._stopping = False
        self._connected = False
        self._wake = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=f'shared-memory receiver {client.name}', daemon=True)
        self._thread.start()

    def retarget(self, path: Path, publisher_id: str = '') -> None:
        """A new announcement has come: connect now."""
        self.client.retarget(path, publisher_id)
        self._wake_up()

    def _wake_up(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            os.eventfd_write(self._wake.fileno(), 1)

    def _run(self) -> None:
        client = self.client
        poller = select.poll()
        poller.register(client.fileno(), select.POLLIN)
        poller.register(self._wake.fileno(), select.POLLIN)
        while not self._stopping:
            # Before trying again: that would replace the reason of the end.
            self._tell()
            patience_s = client.approach()
            self._tell()
            awaited = client.awaited
            if awaited is not None:
                poller.register(awaited, select.POLLIN)
            poller.poll(None if patience_s is None else patience_s * 1000 + 1)
            if awaited is not None:
                poller.unregister(awaited)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake.fileno())
            while not self._stopping and (frame := client.receive()) is not None:
                try:
                    self._deliver(frame)
                except Exception as error:
                    self._failed(error)

    def _tell(self) -> None:
        connected = self.client.connected
        changed, self._connected = connected is not self._connected, connected
        if changed and self._on_state is not None:
            try:
                self._on_state(connected, '' if connected else self.client.last_end)
            except Exception as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """What a callback raises must not end the thread."""
        self.failures += 1
        self.last_failure = f'{type(error).__name__}: {error}'

    def close(self) -> None:
        """End the thread and the connection. Frames that were handed on stay readable. A second call does nothing."""
        if self._pid != os.getpid():
            return
        self._stopping = True
        self._wake_up()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self.client.close()
        self._wake.close()

    def __enter__(self) -> SharedMemoryReceiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
