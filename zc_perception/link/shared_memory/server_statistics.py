"""What a server counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from zc_perception.link.shared_memory.codes import RefusalCode
from zc_perception.link.shared_memory.connection import ConsumerStatistics
from zc_perception.link.shared_memory.errors import ProtocolError


@dataclass(frozen=True)
class ServerStatistics:
    """A snapshot for diagnostics.

    :param consumers: those that are connected.
    :param handshaking: connections that haven't said HELLO yet.
    :param welcomed: consumers since start.
    :param refused: by reason, consumers that were not welcome (version, not_allowed, connections, slots, constraints, ...).
    :param last_refusal: by reason, the latest refusal in words.
    :param protocol_errors: by reason, peers that broke a rule of WIRE.md.
    :param ended: by reason, connections that were welcome and have ended (eof, closed, pool, send, or a protocol error's).
    :param taken_back: frames that consumers held when they ended.
    :param internal_errors: exceptions that nobody had thought of; each cost one consumer its connection.
    :param last_internal_error: the text of the latest.
    """

    consumers: tuple[ConsumerStatistics, ...]
    handshaking: int
    welcomed: int
    refused: dict[str, int]
    last_refusal: dict[str, str]
    protocol_errors: dict[str, int]
    ended: dict[str, int]
    taken_back: int
    internal_errors: int
    last_internal_error: str


class ServerCounters:
    """Counted by the server's thread, read by any."""

    def __init__(self) -> None:
        self.welcomed = 0
        self.refused: Counter[str] = Counter()
        self.last_refusal: dict[str, str] = {}
        self.protocol_errors: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.taken_back = 0
        self.internal_errors = 0
        self.last_internal_error = ''

    def refuse(self, error: ProtocolError) -> None:
        """Count by its kind."""
        if error.code is RefusalCode.PROTOCOL:
            self.protocol_errors[error.reason] += 1
        else:
            self.refused[error.reason] += 1
            self.last_refusal[error.reason] = str(error)

    def internal(self, error: Exception) -> None:
        """Count what nobody had thought of."""
        self.internal_errors += 1
        self.last_internal_error = f'{type(error).__name__}: {error}'

    def snapshot(self, consumers: tuple[ConsumerStatistics, ...], handshaking: int) -> ServerStatistics:
        """The counters as they are."""
        return ServerStatistics(
            consumers, handshaking, self.welcomed, dict(self.refused), dict(self.last_refusal), dict(self.protocol_errors),
            dict(self.ended), self.taken_back, self.internal_errors, self.last_internal_error,
        )  # fmt: skip
