"""Clocks: stamps are only as good as they are.

Sources: the kernel's timekeeping documentation (clocksources), adjtimex(2).
"""

from __future__ import annotations

from collections.abc import Iterator

from zc_perception.doctor.finding import Finding, Status, ok, skip
from zc_perception.doctor.needs import Needs
from zc_perception.doctor.system import System

_FOLDER = 'sys/devices/system/clocksource/clocksource0'
#: Read through a device, at a microsecond and more each time.
_SLOW = ('hpet', 'acpi_pm', 'jiffies', 'refined-jiffies', 'pit')


def clock_source(system: System, needs: Needs) -> Iterator[Finding]:
    """Every frame is stamped several times."""
    source, others = system.read(_FOLDER, 'current_clocksource'), system.read(_FOLDER, 'available_clocksource')
    figures = {'source': source, 'available': others.split()}
    if not source:
        yield skip('the kernel does not show its clock source', **figures)
    elif source in _SLOW:
        advice = (
            f'dmesg | grep -i clocksource says why no better one is used (available: {others}); '
            'update the BIOS, or boot with tsc=reliable if you know that it is'
        )
        yield Finding(Status.WARN, f'clock source {source}, which is slow to read', advice, '', figures)
    else:
        yield ok(f'clock source {source}', **figures)


def synchronised(system: System, needs: Needs) -> Iterator[Finding]:
    """Stamps of several machines can only be compared where something disciplines the clocks."""
    state = system.synchronised()
    clocks = [name for name in system.names('dev') if name.startswith('ptp')]
    figures = {'synchronised': state, 'ptp': clocks}
    hardware = f', PTP clocks: {", ".join(clocks)}' if clocks else ''
    if state is None:
        yield skip(f'the kernel does not say whether the clock is synchronised{hardware}', **figures)
    elif state:
        yield ok(f'the clock is synchronised{hardware}', **figures)
    else:
        advice = 'start chrony, or ptp4l with phc2sys; with only one machine it does not matter, because all stamps come from one clock'
        yield Finding(Status.WARN, f'no program synchronises the clock{hardware}', advice, '', figures)
