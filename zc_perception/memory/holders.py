"""Who may hold how many leases of a pool, and who does."""

from __future__ import annotations

from zc_perception.errors import ConfigError


class HolderAccounts:
    """Quotas and leases by holder's name. Its pool holds a lock around every call.

    A holder without leases and without a quota leaves nothing behind: consumers come and go for as long as a vehicle drives.

    :param pool_name: for messages.
    :param reserve: slots that are promised to nobody: what the driver needs queued, and what the producer has in flight.
    """

    def __init__(self, pool_name: str, reserve: int) -> None:
        self._pool_name = pool_name
        self.reserve = reserve
        self.quotas: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self.refused_total = 0

    @property
    def promised(self) -> int:
        """The sum of all quotas."""
        return sum(self.quotas.values())

    def set_quota(self, holder: str, frames: int | None, slots: int, overcommit: bool) -> None:
        """See :meth:`BufferPool.set_quota`.

        :raises ConfigError: negative, or more than is left of *slots*.
        """
        if frames is None:
            self.forget(holder)
            return
        if frames < 0:
            raise ConfigError(f"pool of {self._pool_name}: a quota of {frames} leases for '{holder}'; 0 or more, or None for no limit")
        others = self.promised - self.quotas.get(holder, 0)
        if not overcommit and others + self.reserve + frames > slots:
            raise ConfigError(
                f"pool of {self._pool_name}: a quota of {frames} leases for '{holder}' is more than is left: of {slots} slots "
                f'{others} are promised to others and {self.reserve} reserved for the producer; '
                f'ask for at most {max(0, slots - others - self.reserve)}, or configure more slots'
            )
        self.quotas[holder] = frames

    def forget(self, holder: str) -> None:
        """End a holder's quota."""
        self.quotas.pop(holder, None)
        self.refused.pop(holder, None)

    def check_room(self, slots: int) -> None:
        """
        :raises ConfigError: *slots* are too few for what is promised and reserved.
        """
        if self.promised + self.reserve > slots:
            promises = ', '.join(f'{holder} {frames}' for holder, frames in sorted(self.quotas.items()))
            raise ConfigError(
                f'pool of {self._pool_name}: {slots} slots are too few for the quotas ({promises or "none"}) and the {self.reserve} '
                f'reserved for the producer; use {self.promised + self.reserve} slots, or lower the quotas first'
            )

    def take(self, holder: str) -> bool:
        """One more lease, unless *holder* is at its quota, which is counted."""
        holding = self.held.get(holder, 0)
        if self.quotas:
            quota = self.quotas.get(holder)
            if quota is not None and holding >= quota:
                self.refused[holder] = self.refused.get(holder, 0) + 1
                self.refused_total += 1
                return False
        self.held[holder] = holding + 1
        return True

    def give_back(self, holder: str) -> None:
        """One lease less."""
        holding = self.held[holder]
        if holding == 1:
            del self.held[holder]
        else:
            self.held[holder] = holding - 1
