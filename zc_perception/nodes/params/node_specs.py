"""What a node declares: its own parameters, and those of the kinds that one of them chooses among. Needs no ROS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zc_perception.errors import ConfigError
from zc_perception.kinds import Kinds
from zc_perception.parameters import ParameterSpec


class NodeSpecs:
    """Iterate over it: each parameter once, the node's own first. The kinds are imported by that, not before.

    :param own: the node's own.
    :param chooses: the one of these that chooses a kind.
    :param kinds: among which it chooses.
    """

    def __init__(
        self, *own: ParameterSpec, chooses: str = '', kinds: Kinds[Any] | None = None
    ) -> None:
        self.own = own
        self.chooses = chooses
        self.kinds = kinds

    def __iter__(self) -> Iterator[ParameterSpec]:
        """
        :raises ConfigError: a kind's parameter has the name of one of the node's own, or of another kind's that is not the same.
        """
        yield from self.own
        if self.kinds is None:
            return
        names = {spec.name for spec in self.own}
        for spec in self.kinds.declared.parameters:
            if spec.name in names:
                kind = self.kinds.declared.readers[spec.name][0]
                raise ConfigError(
                    f"parameter '{spec.name}' of {self.kinds.whose(kind)} has the name of the node's own; give it another name"
                )
            yield spec

    @property
    def broken(self) -> Sequence[str]:
        """A sentence for each kind that can't be imported."""
        return () if self.kinds is None else self.kinds.declared.broken

    def unread(self, values: Mapping[str, Any]) -> dict[str, str]:
        """The parameters among *values* that the chosen kind doesn't read and that aren't at their default, with a sentence for each.

        :param values: as they were given, by parameter.
        """
        found: dict[str, str] = {}
        if self.kinds is None:
            return found
        declared = self.kinds.declared
        defaults = {spec.name: spec.default for spec in (*self.own, *declared.parameters)}
        chosen = values.get(self.chooses, defaults[self.chooses])
        if chosen not in self.kinds.names:
            return found  # which is said otherwise
        for name, value in values.items():
            readers = declared.readers.get(name, ())
            if readers and chosen not in readers and value != defaults[name]:
                found[name] = (
                    f"parameter '{name}' is read by {self.chooses}: {', '.join(readers)} only, not by {self.chooses}: {chosen}; "
                    'leave it out'
                )
        return found
