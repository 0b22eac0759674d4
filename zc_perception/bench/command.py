"""What a sub-command of ``zc_bench`` is made of; the rest, from arguments to the file, is the same for all of them."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from zc_perception.bench.bars import Bar
from zc_perception.bench.rows import Row
from zc_perception.errors import ConfigError

Say = Callable[[str], None]


@dataclass(frozen=True)
class Measured:
    """A run's rows, and what they depend on besides the machine: more keys of ``environment``."""

    rows: Sequence[Row]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """A sub-command.

    :param add_options: its own, next to ``--json``, ``--check`` and ``--repetitions``.
    :param prepare: from the options to what measures; raises ConfigError for numbers that make no sense, before anything is started.
    :param bars: what ``--check`` compares with.
    :param needs: modules without which its processes can't start.
    """

    name: str
    help: str
    add_options: Callable[[argparse.ArgumentParser], None]
    prepare: Callable[[argparse.Namespace], Callable[[Say], Measured]]
    bars: Sequence[Bar]
    needs: Sequence[str] = ()

    def check_needs(self) -> None:
        """
        :raises ModuleNotFoundError: one of them is missing.
        """
        for module in self.needs:
            if importlib.util.find_spec(module) is None:
                raise ModuleNotFoundError(f"No module named '{module}'", name=module)


def check_counts(options: argparse.Namespace, **most: int) -> None:
    """Each of the named options is above 0 and at most its limit.

    :raises ConfigError: one is not.
    """
    for name, limit in most.items():
        value = getattr(options, name)
        if not 0 < value <= limit:
            raise ConfigError(f'--{name} {value:g}: give more than 0 and at most {limit}')
