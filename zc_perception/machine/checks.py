"""One check of ``zc_doctor``: the doctor has its own, and each kind of camera or accelerator declares those of what it needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zc_perception.machine.finding import Finding
    from zc_perception.machine.needs import Needs
    from zc_perception.machine.system import System

    CheckFunction = Callable[[System, Needs], Iterable[Finding]]


@dataclass(frozen=True)
class Check:
    """One check: at least one finding, more where it has several subjects.

    :param id: ``GROUP.NAME``. It stays, since programs may rely on it.
    :param about: what it looks at, in a few words.
    :param function: what it does, or its place as ``module:function``: that module is imported when the check runs.
    """

    id: str
    about: str
    function: CheckFunction | str

    @property
    def group(self) -> str:
        """What ``--only`` names. The checks of a group run one after the other."""
        return self.id.partition('.')[0]

    def run(self, system: System, needs: Needs) -> Iterable[Finding]:
        """What it finds."""
        function = self.function
        if isinstance(function, str):
            module, _, name = function.partition(':')
            function = getattr(importlib.import_module(module), name)
        return function(system, needs)
