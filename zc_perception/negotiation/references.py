"""Who still refers to a collection's buffers. Memory may be reused only when nobody does.

Source: Fuchsia's *Sysmem overview*, Buffer destruction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from types import TracebackType

from zc_perception.errors import NegotiationError


class ReferenceKind(Enum):
    """What refers to the buffers."""

    INITIATOR = 'initiator'
    TOKEN = 'token'
    PARTICIPANT = 'participant'
    LEASE = 'lease'
    IMPORT = 'import'
    MAPPING = 'mapping'


class Reference:
    """One reference; closing it twice does nothing."""

    def __init__(self, owner: References, kind: ReferenceKind, holder: str) -> None:
        self.kind = kind
        self.holder = holder
        self._owner = owner

    def close(self) -> None:
        """Drop it. The last one runs the release callback, in this thread."""
        self._owner.drop(self)

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class References:
    """Counts references by kind. Thread-safe.

    :param release: called exactly once, without a lock, after the last reference was dropped.
    """

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._held: dict[int, Reference] = {}
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the last one is gone."""
        return self._ended

    def take(self, kind: ReferenceKind, holder: str) -> Reference:
        """One more.

        :raises NegotiationError: the buffers are gone already.
        """
        reference = Reference(self, kind, holder)
        with self._lock:
            if self._ended:
                raise NegotiationError(f'{holder}: the buffers were destroyed with their last reference; negotiate new ones')
            self._held[id(reference)] = reference
        return reference

    def drop(self, reference: Reference) -> None:
        """See :meth:`Reference.close`."""
        with self._lock:
            if self._held.pop(id(reference), None) is None:
                return
            last = self._ended = not self._held
        if last:
            self._release()

    def names(self) -> dict[str, tuple[str, ...]]:
        """Holders by kind, in the order in which they came."""
        with self._lock:
            held = list(self._held.values())
        return {kind.value: names for kind in ReferenceKind if (names := tuple(r.holder for r in held if r.kind is kind))}
