"""The rules of explicit and implicit modifiers, as operations that check them.

Source: the kernel's *Exchanging pixel buffers*, "Implicit modifiers". The token INVALID has its place in four operations only:
enumeration, allocation request, query after the allocation, import. Over one buffer the whole chain of producer and consumers is
explicit or implicit, never mixed; the one exception is an implicit allocation that is *upgraded* by asking the allocator. Zero is
LINEAR, a promise, never "not set": nothing here has a default modifier. "No modifier" is ``None``, the same as INVALID.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zc_perception.errors import NegotiationError
from zc_perception.pixel.fourcc import fourcc_name
from zc_perception.pixel.modifier import INVALID, LINEAR, check_modifier, modifier_name

_ADVICE = 'allocate implicitly for all, or use a separate buffer and copy'


def token(modifier: int | None) -> int:
    """*modifier*, with the out-of-band "none" of some interfaces written as INVALID.

    :raises FormatError: not a 64-bit number.
    """
    return INVALID if modifier is None else check_modifier(modifier)


def _names(modifiers: Sequence[int]) -> str:
    return ', '.join(map(modifier_name, modifiers))


@dataclass(frozen=True)
class Enumerated:
    """Case 1: what one interface lists for a format. INVALID alone: it knows no modifiers; among others: implicit works as well."""

    who: str
    fourcc: int
    modifiers: tuple[int, ...]

    @property
    def explicit(self) -> tuple[int, ...]:
        """The modifiers that it names."""
        return tuple(modifier for modifier in self.modifiers if modifier != INVALID)

    @property
    def implicit(self) -> bool:
        """Whether it takes buffers of unknown layout."""
        return INVALID in self.modifiers


def intersect(lists: Sequence[Enumerated]) -> tuple[int, ...]:
    """What all of them list, in the first one's order, which has no meaning. INVALID remains only if everybody has it.

    :raises NegotiationError: no list, lists of different formats, or nothing in common; the message says what to do instead.
    """
    if not lists:
        raise NegotiationError('no list of modifiers to intersect; enumerate those of every user')
    first = lists[0]
    other = next((entry for entry in lists if entry.fourcc != first.fourcc), None)
    if other is not None:
        raise NegotiationError(
            f'{other.who} lists modifiers of {fourcc_name(other.fourcc)}, {first.who} of {fourcc_name(first.fourcc)}; '
            'choose one format first'
        )
    found = tuple(modifier for modifier in first.modifiers if all(modifier in entry.modifiers for entry in lists))
    if not found:
        offers = '; '.join(f'{entry.who}: {_names(entry.modifiers) or "none"}' for entry in lists)
        raise NegotiationError(f'no common modifier of {fourcc_name(first.fourcc)} ({offers}); {_ADVICE}')
    return found


@dataclass(frozen=True)
class Requested:
    """Case 2: the modifiers that an allocation may have. ``None`` is no list at all, the same as INVALID alone.

    :raises NegotiationError: an empty list, which would accept nothing.
    """

    fourcc: int
    modifiers: tuple[int, ...] | None

    def __post_init__(self) -> None:
        if self.modifiers == ():
            raise NegotiationError(
                f'allocation of {fourcc_name(self.fourcc)} with an empty list of modifiers; name LINEAR, or INVALID for an implicit layout'
            )
        object.__setattr__(self, 'modifiers', tuple(map(token, self.modifiers if self.modifiers is not None else (None,))))

    @property
    def acceptable(self) -> tuple[int, ...]:
        """The list, never empty."""
        assert self.modifiers is not None
        return self.modifiers

    @property
    def explicit_allowed(self) -> bool:
        """Whether the allocator may choose an explicit modifier."""
        return self.acceptable != (INVALID,)

    @property
    def implicit_allowed(self) -> bool:
        """Whether the allocator may answer that the layout is its own affair."""
        return INVALID in self.acceptable

    def strongly_advised(self) -> int | None:
        """LINEAR for an implicit allocation whose allocator can choose: the universal baseline, though no guarantee; else ``None``."""
        return LINEAR if self.implicit_allowed else None

    def answered(self, modifier: int | None) -> Allocated:
        """Case 3: the query after the allocation.

        :raises NegotiationError: a modifier that was not in the list, or INVALID where no implicit layout was acceptable.
        """
        answer = token(modifier)
        if answer == INVALID and not self.implicit_allowed:
            raise NegotiationError(
                f'the allocator answered INVALID for {fourcc_name(self.fourcc)}, which only a request that has INVALID in its list '
                f'allows; acceptable are {_names(self.acceptable)}'
            )
        if not self.explicit_allowed:
            # Whatever the allocator tells, nobody asked for it: it stays implicit until it is upgraded.
            return Allocated(self.fourcc, INVALID)
        if answer not in self.acceptable:
            raise NegotiationError(f'the allocator chose modifier {modifier_name(answer)}, acceptable are {_names(self.acceptable)}')
        return Allocated(self.fourcc, answer)


@dataclass(frozen=True)
class Allocated:
    """A buffer's modifier as the whole chain has to see it."""

    fourcc: int
    modifier: int

    @property
    def explicit(self) -> bool:
        """Whether the chain is explicit."""
        return self.modifier != INVALID

    def upgraded(self, modifier: int | None) -> Allocated:
        """The exception: the allocator of an implicit buffer was asked and named the modifier. INVALID leaves it as it is.

        :raises NegotiationError: the buffer is explicit already, and another modifier was named.
        """
        answer = token(modifier)
        if self.explicit:
            if answer == self.modifier:
                return self
            raise NegotiationError(
                f'the buffer was allocated with modifier {modifier_name(self.modifier)}, it can not become {modifier_name(answer)}'
            )
        return self if answer == INVALID else Allocated(self.fourcc, answer)

    def check_import(self, who: str, modifier: int | None) -> None:
        """Case 4: *who* imports the buffer with *modifier*.

        :raises NegotiationError: no modifier for an explicit buffer, a modifier for an implicit one, or the wrong one.
        """
        given = token(modifier)
        if given == self.modifier:
            return
        what = fourcc_name(self.fourcc)
        if given == INVALID:
            raise NegotiationError(
                f'{who} imports {what} without a modifier, but the buffer was allocated with {modifier_name(self.modifier)}; {_ADVICE}'
            )
        if not self.explicit:
            raise NegotiationError(
                f'{who} imports {what} as {modifier_name(given)}, but nobody said what the layout of this implicit allocation is; '
                'ask the allocator and upgrade it first'
            )
        raise NegotiationError(f'{who} imports {what} as {modifier_name(given)}, but the buffer is {modifier_name(self.modifier)}')


class ModifierChain:
    """One buffer's way from its producer through all of its consumers.

    :param producer: who allocated it.
    """

    def __init__(self, producer: str, allocated: Allocated) -> None:
        self.allocated = allocated
        self._members = [producer]

    @property
    def members(self) -> tuple[str, ...]:
        """The producer, then consumers in the order of their imports."""
        return tuple(self._members)

    def add_import(self, who: str, modifier: int | None) -> None:
        """*who* imports the buffer.

        :raises NegotiationError: see :meth:`Allocated.check_import`; the chain stays as it was.
        """
        self.allocated.check_import(who, modifier)
        if who not in self._members:  # one that left comes again
            self._members.append(who)

    def upgrade(self, modifier: int | None) -> None:
        """Ask the allocator, then go on explicitly; only before anybody has imported the buffer implicitly.

        :raises NegotiationError: somebody has, or the buffer is explicit with another modifier.
        """
        answer = self.allocated.upgraded(modifier)
        if answer != self.allocated and len(self._members) > 1:
            raise NegotiationError(
                f'{", ".join(self._members[1:])} imported the buffer without a modifier, so the chain stays implicit; '
                f'upgrade to {modifier_name(answer.modifier)} before the first import'
            )
        self.allocated = answer
