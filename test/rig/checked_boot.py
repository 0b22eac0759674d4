"""What the tests share that run many checks in one boot."""

from __future__ import annotations

from dataclasses import dataclass

from . import RigResult

#: Of a boot's command. Enough for a machine that is several times too slow: the figures say how quick it was, a check must not.
TIMEOUT_S = 1800.0

#: Red zones and poison find what is used after it was freed, full preemption finds races.
STRICT = 'slub_debug=FZP,kmalloc-* preempt=full'

#: Two cameras, with memory from vmalloc and from the DMA API.
CAMERAS = 'n_devs=2 node_types=0x1,0x1 allocators=0,1'


@dataclass(frozen=True)
class Boot:
    """The run, and what each check said: a traceback, or nothing."""

    result: RigResult
    outcome: dict[str, str]
