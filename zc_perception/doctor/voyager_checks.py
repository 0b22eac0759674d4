"""The Voyager SDK's runtime, for accelerator axruntime.

Source: Voyager SDK, *API Reference* of ``axruntime.h`` and installation; ``docs/voyager.md``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from zc_perception.doctor.finding import Finding, Need, ok, skip
from zc_perception.doctor.needs import Needs
from zc_perception.doctor.system import System

TOOLCHAIN = 'riscv64-unknown-elf-gcc'
_INSTALL = ('install the Voyager SDK runtime (/opt/axelera/runtime-*), activate it (AXELERA_RUNTIME_DIR) or set axruntime_library; '
            'without it use accelerator: axl or cpu')  # fmt: skip


def _installed(system: System) -> list[str]:
    names = [name for name in system.names('opt/axelera') if name.startswith('runtime-')]
    return [f'/opt/axelera/{name}' for name in names]


def voyager_runtime(system: System, needs: Needs) -> Iterator[Finding]:
    """Loaded as the accelerator loads it."""
    need = needs.accelerator('axruntime')
    if need is Need.UNUSED:
        yield skip('the parameter file uses no accelerator axruntime', releases=_installed(system))
        return
    libraries = dict.fromkeys(inference.axruntime_library for inference in needs.inferences) or ('',)
    for library in libraries:
        answer = system.ask('voyager', library)
        figures = {**answer, 'releases': _installed(system), 'activated': system.environment.get('AXELERA_RUNTIME_DIR', '')}
        if 'error' in answer:
            releases = f'; installed: {", ".join(_installed(system))}' if _installed(system) else ''
            found = str(answer['error']).rpartition('; ')[0] or str(answer['error'])
            yield Finding(need.missing_extra, f'{found}{releases}', _INSTALL, library, figures)
            continue
        missing = [name for name, there in answer['functions'].items() if not there]
        without = f'; this older release lacks {", ".join(missing)}' if missing else ''
        yield ok(f'{answer["path"]}, API {answer["api_version"]}{without}', library, **figures)


def voyager_toolchain(system: System, needs: Needs) -> Iterator[Finding]:
    """The runtime compiles part of each model when it loads it."""
    need = needs.accelerator('axruntime')
    if need is not Need.REQUIRED and not _installed(system):
        yield skip('only accelerator axruntime needs it')
        return
    found = shutil.which(TOOLCHAIN, path=system.environment.get('PATH', ''))
    if found:
        yield ok(f'{TOOLCHAIN} is {found}', path=found)
    else:
        advice = f'activate the SDK, so that {TOOLCHAIN} is on PATH of the node; a systemd unit has a PATH of its own'
        yield Finding(
            need.missing, f'{TOOLCHAIN} is not on PATH: models fail to load with "Failed to create executor"', advice, '', {'path': ''}
        )
