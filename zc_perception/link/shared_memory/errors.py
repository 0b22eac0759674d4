"""What goes wrong between two processes."""

from __future__ import annotations

from zc_perception.errors import ZcError
from zc_perception.link.shared_memory.codes import RefusalCode


class ProtocolError(ZcError):
    """The peer broke a rule of WIRE.md. What came of it is closed.

    :param reason: one word, to count by.
    :param code: what a producer says in REFUSED.
    """

    def __init__(self, reason: str, text: str, code: RefusalCode = RefusalCode.PROTOCOL) -> None:
        super().__init__(text)
        self.reason = reason
        self.code = code


class MisfitError(ZcError):
    """This consumer can't use the producer's buffers: its constraints don't suit, or a trial import failed."""


class RefusedError(ZcError):
    """The producer said REFUSED, and why.

    :param code: PROTOCOL also where it was a number that this version doesn't know.
    """

    def __init__(self, code: RefusalCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class PeerGoneError(ZcError):
    """Nobody listens there, or the other end closed."""


class SilentError(PeerGoneError):
    """Somebody listens there and doesn't answer."""
