"""libcamera's Python module, whichever generation is installed, and its requests dealt out to the cameras of this process.

The module has one manager for all cameras, with one descriptor that says that something is complete. Planes are objects in newer
bindings, and indexed methods of the buffer in older ones; calls that fail raise a RuntimeError with strerror's words in newer ones, and
return a negative number in older ones. Controls are looked up by name: two objects may stand for the same one.

Source: ``src/py/libcamera`` of libcamera, and its *pycamera* examples. Tested against a module of our own that has the documented
interface of both generations (``test/doubles/libcamera_module.py``), not with libcamera itself.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import select
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zc_perception.errors import CameraBusyError, CameraError, ConfigError
from zc_perception.memory.owned_fd import OwnedFd

_INSTALL = 'install it: apt install python3-libcamera, or build libcamera with -Dpycamera=enabled'


@dataclass(frozen=True)
class PlaneFd:
    """One plane of a libcamera buffer. The descriptor is the buffer's; several planes may share what it refers to.

    :param offset: where the plane begins.
    :param length: its bytes.
    """

    number: int
    offset: int
    length: int

    def duplicate(self) -> OwnedFd:
        """A descriptor of our own."""
        return OwnedFd.duplicate(self.number)


def planes_of(buffer: Any) -> list[PlaneFd]:
    """The planes of a FrameBuffer of either generation."""
    if hasattr(buffer, 'planes'):
        return [PlaneFd(plane.fd, plane.offset, plane.length) for plane in buffer.planes]
    return [PlaneFd(buffer.fd(index), buffer.offset(index), buffer.length(index)) for index in range(buffer.num_planes)]


def checked(what: str, result: Any) -> Any:
    """*result* of a call, unless it is an older binding's negative error number.

    :raises CameraError: it is.
    """
    if isinstance(result, int) and not isinstance(result, bool) and result < 0:
        raise error_of(what, OSError(-result, os.strerror(-result)))
    return result


def error_of(what: str, error: BaseException) -> CameraError:
    """The camera's error for one of the module's."""
    text = f'libcamera could not {what}: {error}'
    if os.strerror(errno.EBUSY) in str(error):
        return CameraBusyError(f'{text}; end the other program that uses the camera')
    return CameraError(f'{text}; try it with the program cam of libcamera-tools, and see its log (LIBCAMERA_LOG_LEVELS=*:DEBUG)')


def named(controls: Mapping[Any, Any], name: str) -> tuple[Any, Any] | None:
    """The control of that name and its value, or ``None``."""
    return next(((control, value) for control, value in controls.items() if getattr(control, 'name', control) == name), None)


def import_libcamera() -> Any:
    """The module.

    :raises ConfigError: it isn't installed, or is something else.
    """
    try:
        module = importlib.import_module('libcamera')
    except ImportError as error:
        raise ConfigError(f"camera 'libcamera' needs its Python bindings: {error}; {_INSTALL}") from error
    if not hasattr(module, 'CameraManager'):
        raise ConfigError(f"the module 'libcamera' at {getattr(module, '__file__', '?')} is something else; {_INSTALL}")
    if not hasattr(module.CameraManager, 'get_ready_requests'):
        raise ConfigError(
            "the module 'libcamera' is from before the middle of 2022, when its names were others; install libcamera 0.0.1 or newer"
        )
    return module


class Mailbox:
    """Completed requests of one camera. Deque operations are atomic, so that the hot path takes no lock of its own.

    :param cookie: the upper part of its requests' cookies.
    """

    def __init__(self, cookie: int) -> None:
        self.cookie = cookie
        self.ready: deque[Any] = deque()
        self.wake = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def ring(self) -> None:
        """Make a wait return."""
        if not self.wake.closed:
            os.eventfd_write(self.wake.fileno(), 1)


class Requests:
    """The one manager's completed requests, for all cameras of the process: whoever wakes up first fetches everybody's."""

    _of_module: ClassVar[dict[int, Requests]] = {}
    _making = threading.Lock()

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self._lock = threading.Lock()
        self._boxes: dict[int, Mailbox] = {}
        self._next = 1

    @classmethod
    def shared(cls, module: Any) -> Requests:
        """That of the module's one manager."""
        with cls._making:
            manager = module.CameraManager.singleton()
            found = cls._of_module.get(id(manager))
            if found is None:
                found = cls._of_module[id(manager)] = cls(manager)
            return found

    def open(self) -> Mailbox:
        """A camera's own mailbox."""
        with self._lock:
            box = Mailbox(self._next << 16)
            self._boxes[self._next] = box
            self._next += 1
            return box

    def close(self, box: Mailbox) -> None:
        """What comes for it from now on is nobody's."""
        with self._lock:
            self._boxes.pop(box.cookie >> 16, None)
        box.wake.close()

    def wait(self, box: Mailbox, timeout_s: float) -> Any | None:
        """The mailbox's oldest request, or ``None`` within *timeout_s* or when it was rung."""
        if not box.ready:
            poller = select.poll()
            poller.register(self.manager.event_fd, select.POLLIN)
            poller.register(box.wake.fileno(), select.POLLIN)
            events = dict(poller.poll(max(0, round(timeout_s * 1000))))
            if box.wake.fileno() in events:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(box.wake.fileno())
            if self.manager.event_fd in events:
                self._deal()
        return box.ready.popleft() if box.ready else None

    def _deal(self) -> None:
        with self._lock:
            # Another camera's thread may have fetched them meanwhile: reading an empty descriptor would wait.
            if not select.select([self.manager.event_fd], [], [], 0)[0]:
                return
            for request in self.manager.get_ready_requests():
                box = self._boxes.get(request.cookie >> 16)
                if box is not None:
                    box.ready.append(request)
                    box.ring()
