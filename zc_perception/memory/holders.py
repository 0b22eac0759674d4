"""Who may hold how many frames of a pool, and who does."""

from __future__ import annotations

from collections.abc import Callable, Iterable

SPARE = 2
"""So many slots a promise leaves for whoever comes next, where it can."""
# A second frame in hand is a convenience for who named no needs. Three and more are asked for on purpose.
_CONVENIENT = 2
_NO_LIMIT = 1 << 30


class Account:
    """One holder's leases, and what it was promised.

    :param holder: its name.

    ``frames``: its leases, those that wait for it and those that were handed to it. ``window``: how many may be handed to it at the same
    time; ``None``: no limit. ``depth``: how many of the newest frames may wait for it besides. ``limit``: window and depth together.
    ``waits``: a frame waits that can't be handed out, because the window is full. ``lossless``: a producer that can wait does so, before
    this holder loses a frame.
    """

    __slots__ = (
        'depth',
        'frames',
        'holder',
        'limit',
        'lossless',
        'on_room',
        'refused',
        'waits',
        'window',
    )

    def __init__(self, holder: str) -> None:
        self.holder = holder
        self.frames = 0
        self.window: int | None = None
        self.depth = 0
        self.limit = _NO_LIMIT
        self.refused = 0
        self.waits = False
        self.lossless = False
        self.on_room: Callable[[], object] | None = None

    @property
    def full(self) -> bool:
        """Whether it gets no lease any more."""
        return self.frames >= self.limit


class HolderAccounts:
    """What a pool has promised to each holder, and how many leases each has. The pool holds its lock around every call.

    A promise is a *window*, the frames in a holder's hands, and a *depth*, the newest frames that wait for it. Windows add up, because
    each holder may hold other frames. Depths don't: the same newest frames wait for all holders, so only the greatest depth counts.

    A holder without leases and without a quota leaves nothing behind: consumers come and go for as long as a vehicle drives.

    :param reserve: slots that are promised to nobody: what the driver needs queued, and what the producer has in flight.
    """

    def __init__(self, reserve: int) -> None:
        self.reserve = reserve
        self.accounts: dict[str, Account] = {}
        self.refused_total = 0

    @property
    def held(self) -> dict[str, int]:
        """Leases by holder, of those who have any."""
        return {
            account.holder: account.frames for account in self.accounts.values() if account.frames
        }

    @property
    def quotas(self) -> dict[str, int]:
        """The most leases by holder, of those with a limit."""
        return {
            account.holder: account.limit
            for account in self.accounts.values()
            if account.window is not None
        }

    @property
    def refused(self) -> dict[str, int]:
        """Refusals by holder, of those with a limit who were refused."""
        return {
            account.holder: account.refused
            for account in self.accounts.values()
            if account.refused
        }

    @property
    def promised(self) -> int:
        """The sum of all windows, and the greatest depth."""
        windows, depth = self._promises(self.accounts.values())
        return windows + depth

    @staticmethod
    def _promises(accounts: Iterable[Account]) -> tuple[int, int]:
        limited = [
            (account.window, account.depth) for account in accounts if account.window is not None
        ]
        return sum(window for window, _ in limited), max(
            (depth for _, depth in limited), default=0
        )

    def _others(self, holder: str) -> tuple[int, int]:
        return self._promises(
            account for account in self.accounts.values() if account.holder != holder
        )

    def set_quota(
        self,
        holder: str,
        window: int | None,
        depth: int,
        on_room: Callable[[], object] | None = None,
    ) -> Callable[[], object] | None:
        """See :meth:`BufferPool.set_quota`.

        :returns: what tells the holder that it may be handed a frame again; for the caller to call without the lock.
        """
        if window is None:
            self.forget(holder)
            return None
        account = self.accounts.get(holder)
        if account is None:
            account = self.accounts[holder] = Account(holder)
        account.window, account.depth, account.limit, account.on_room = (
            window,
            depth,
            window + depth,
            on_room,
        )
        if account.waits:
            account.waits = False
            return on_room
        return None

    def grant(
        self,
        holder: str,
        window: int,
        depth: int,
        slots: int,
        on_room: Callable[[], object] | None = None,
        *,
        alone: bool = False,
        whole: bool = False,
    ) -> tuple[int, int]:
        """See :meth:`BufferPool.grant`."""
        windows, deepest = self._others(holder)
        left = slots - self.reserve - windows - deepest
        waiting = 0 if deepest else 1
        if left < 1 + waiting:
            if not alone or windows or deepest:
                return 0, 0
            window, depth = 1, 1
        else:
            room = left - waiting
            # Frames that wait are needed less than those in use.
            if window == _CONVENIENT and room - window < SPARE and not whole:
                window = max(1, room - SPARE)
            elif window > room:
                window = max(min(_CONVENIENT, room), room - SPARE)
            depth = min(depth, max(1, deepest, deepest + left - window - SPARE))
        self.set_quota(holder, window, depth, on_room)
        return window, depth

    def forget(self, holder: str) -> None:
        """End a holder's quota."""
        account = self.accounts.get(holder)
        if account is None:
            return
        account.window, account.depth, account.limit, account.refused, account.on_room = (
            None,
            0,
            _NO_LIMIT,
            0,
            None,
        )
        account.waits = account.lossless = False
        if not account.frames:
            del self.accounts[holder]

    @property
    def must_wait(self) -> bool:
        """Whether the next frame would be lost to somebody who is to lose none."""
        return any(account.lossless and account.full for account in self.accounts.values())

    def take(self, holder: str) -> Account | None:
        """One more lease for *holder*; ``None``, which is counted, when it has as many as it may."""
        account = self.accounts.get(holder)
        if account is None:
            account = self.accounts[holder] = Account(holder)
        elif account.frames >= account.limit:
            account.refused += 1
            self.refused_total += 1
            return None
        account.frames += 1
        return account

    def give_back(self, account: Account, handed: bool) -> Callable[[], object] | None:
        """One lease less.

        :returns: what tells the holder that it may be handed a frame again; for the caller to call without the lock.
        """
        account.frames -= 1
        if account.waits and handed:
            account.waits = False
            return account.on_room
        if not account.frames and account.window is None:
            del self.accounts[account.holder]
        return None


UNLIMITED = Account('')
"""For leases that are counted elsewhere."""
