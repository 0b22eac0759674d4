"""How many frames at a time publishers of other processes let a subscription hold, where that is fewer than it asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """What one connection was granted.

    :param publisher_id: whose it is.
    :param connection: another one for each time that the publisher was connected to.
    :param granted: frames that may be held at the same time.
    :param asked: how many were asked for.
    """

    publisher_id: str
    connection: tuple[int, int]
    granted: int
    asked: int

    @property
    def narrow(self) -> bool:
        """Whether who counts on what it asked for may starve."""
        return self.granted < self.asked


class NarrowWindows:
    """Which narrow windows somebody still has to be told of: each connection's once."""

    def __init__(self) -> None:
        self._said: set[tuple[int, int]] = set()

    def unsaid(self, windows: Sequence[Window]) -> list[Window]:
        """Those that are narrow and that :meth:`say` wasn't asked about."""
        return [window for window in windows if window.narrow and window.connection not in self._said]

    def say(self, windows: Sequence[Window]) -> list[str]:
        """A sentence for each of :meth:`unsaid`."""
        news = self.unsaid(windows)
        self._said = {window.connection for window in windows if window.narrow}
        return [
            f'publisher {each.publisher_id[:8]} lets this consumer hold {each.granted} frame(s) at a time, {each.asked} were asked for: '
            "it has no more slots to promise; raise its parameter 'slots', or end other consumers and start this one anew"
            for each in news
        ]


def narrowest(windows: Sequence[Window]) -> tuple[int, int]:
    """Granted and asked of the one that granted the least; zeros without any."""
    return min(((window.granted, window.asked) for window in windows), default=(0, 0))
