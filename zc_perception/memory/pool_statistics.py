"""What a pool says about itself: counters for diagnostics, and who holds what since when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from zc_perception.memory.slot import Slot, SlotState


@dataclass(frozen=True)
class PoolStatistics:
    """A snapshot for diagnostics.

    :param slots: how many the pool has; replacements under way count.
    :param states: how many of them are in which state.
    :param holders: leases by holder, those on slots of an earlier configuration too.
    :param exhausted: frames that found no free slot.
    :param refused_by_quota: by holder, for as long as it has a quota.
    :param abandoned: leases that nobody released.
    :param retired: slots given up because a release fence stayed pending, or a quarantine could not be made.
    :param ending: slots of an earlier configuration whose frames are still held: memory on top of *slots*.
    :param quotas: what is promised to whom.
    :param reserve: what the producer keeps for itself.
    :param refused: all refusals ever.
    :param fence_errors: release fences that signalled an error.
    :param revoked: leases taken back from dead holders.
    :param replacement_failures: how often no buffers could be had for a retired slot.
    :param callback_failures: exceptions out of ``on_free`` and retire listeners.
    :param last_failure: the text of the latest of those two kinds; empty without.
    """

    slots: int
    states: dict[SlotState, int]
    holders: dict[str, int]
    exhausted: int
    refused_by_quota: dict[str, int]
    abandoned: int
    retired: int
    ending: int = 0
    quotas: dict[str, int] = field(default_factory=dict)
    reserve: int = 0
    refused: int = 0
    fence_errors: int = 0
    revoked: int = 0
    replacement_failures: int = 0
    callback_failures: int = 0
    last_failure: str = ''


@dataclass(frozen=True)
class Holding:
    """One lease as others see it.

    :param held_s: for how long.
    :param ending: the slot belongs to an earlier configuration.
    """

    holder: str
    index: int
    generation: int
    held_s: float
    ending: bool


def holdings(current: Iterable[Slot], ending: Iterable[Slot], now: float) -> tuple[Holding, ...]:
    """All leases, the oldest first."""
    found = [
        Holding(lease.holder, slot.index, lease.generation, now - lease.since, is_ending)
        for slots, is_ending in ((current, False), (ending, True))
        for slot in slots
        for lease in slot.leases.values()
    ]
    return tuple(sorted(found, key=lambda holding: -holding.held_s))


def describe_holders(name: str, slots: Iterable[Slot], held: Iterable[Holding], now: float) -> str:
    """One line: how many slots are free, who holds the others, and since when.

    For example ``camera: 0 of 3 slots free; npu holds 2 (slot 0 generation 7 for 1.25 s, slot 1 generation 8 for 0.03 s); slot 2 generation
    9 waits for 1 release fence``.
    """
    by_holder: dict[str, list[str]] = {}
    for lease in held:
        where = f'slot {lease.index} generation {lease.generation} for {lease.held_s:.2f} s'
        by_holder.setdefault(lease.holder, []).append(f'{where}, of an earlier configuration' if lease.ending else where)
    slots = list(slots)
    free = sum(slot.state is SlotState.FREE for slot in slots)
    parts = [f'{name}: {free} of {len(slots)} slots free']
    parts += [f'{holder} holds {len(where)} ({", ".join(where)})' for holder, where in by_holder.items()]
    for slot in slots:
        place = f'slot {slot.index} generation {slot.generation}'
        if slot.state is SlotState.FILLING:
            parts.append(f'{place} is being filled for {now - slot.since:.2f} s')
        elif slot.state is SlotState.WAITING:
            parts.append(f'{place} waits for {len(slot.fences)} release fence{"s" if len(slot.fences) != 1 else ""}')
        elif slot.state is SlotState.RETIRED:
            parts.append(f'{place} is retired')
    return '; '.join(parts)
