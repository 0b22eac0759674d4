# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
Checks of ``zc_doctor`` for accelerator ``axruntime``: runtime, compiler and driver.

The checks look for the Voyager SDK's runtime and compiler, and try the driver's attach ioctl.

Source: Voyager SDK, *API Reference* of ``axruntime.h`` and installation; ``docs/voyager.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
import shutil
from typing import Any

from zc_perception.errors import ZcError
from zc_perception.machine.checks import Finding, Need, Needs, ok, skip, Status
from zc_perception.machine.system import file_of, first_dmabuf, System
from zc_perception.npu.axl.checks import Importable, probe_shipped_attach
from zc_perception.npu.axruntime.binding import binding_release, import_binding, MODULE
from zc_perception.npu.axruntime.library import mismatches, needs_toolchain, RuntimeLibrary
from zc_perception.npu.axruntime.runtime import TOOLS
from zc_perception.npu.metis_card import card_need, driver_version, MetisCard, of_each_card

TOOLCHAIN = 'riscv64-unknown-elf-gcc'
_INSTALL = (
    'install the Voyager runtime (Python package axelera-runtime, or /opt/axelera/runtime-*); '
    'then activate it (AXELERA_RUNTIME_DIR) or set axruntime_library; without this runtime, use '
    'accelerator: axl or onnx'
)


def describe_voyager(library: str = '') -> dict[str, Any]:
    """
    Load the Voyager runtime in the way of accelerator axruntime; return its facts, or the error.

    Loading a foreign library may crash, so :meth:`System.ask` calls this in a process of its own.
    """
    without_binding = 'axruntime_library names the C library'
    if not library:
        try:
            release = binding_release(import_binding())
        except ZcError as error:
            without_binding = str(error)
        else:
            return {
                'path': MODULE,
                'file': '',
                'api_version': release,
                'release': release,
                'python_binding': '',
            }
    try:
        runtime = RuntimeLibrary(library)
    except ZcError as error:
        return {'error': str(error)}
    return {
        'path': runtime.path,
        'file': file_of(runtime.path),
        'api_version': runtime.api_version,
        'release': runtime.release,
        'python_binding': without_binding,
    }


def _installed(system: System) -> list[str]:
    names = [name for name in system.names('opt/axelera') if name.startswith('runtime-')]
    return [f'/opt/axelera/{name}' for name in names]


def voyager_runtime(system: System, needs: Needs) -> Iterator[Finding]:
    """Check the runtime: it loads, the driver fits it, and the programs that it calls exist."""
    need = needs.accelerator('axruntime')
    if need is Need.UNUSED:
        yield skip('the parameter file uses no accelerator axruntime', releases=_installed(system))
        return
    libraries = dict.fromkeys(
        inference['axruntime_library'] for inference in needs.inferences
    ) or ('',)
    for library in libraries:
        answer = system.ask(describe_voyager, library)
        figures = {
            **answer,
            'releases': _installed(system),
            'activated': system.environment.get('AXELERA_RUNTIME_DIR', ''),
        }
        if 'error' in answer:
            releases = (
                f'; installed: {", ".join(_installed(system))}' if _installed(system) else ''
            )
            found = str(answer['error']).rpartition('; ')[0] or str(answer['error'])
            yield Finding(need.missing_extra, f'{found}{releases}', _INSTALL, library, figures)
            continue
        yield ok(f'{answer["path"]}, API {answer["api_version"]}', library, **figures)
        for mismatch in mismatches(str(answer['release']), driver_version(system.host)):
            found, _, advice = mismatch.partition(': ')
            yield Finding(
                need.missing_extra,
                found,
                advice,
                f'{library} driver'.strip(),
                {'release': answer['release']},
            )
        for tool, package in TOOLS.items():
            if (
                need is Need.REQUIRED
                and shutil.which(tool, path=system.environment.get('PATH', '')) is None
            ):
                found = f'the runtime looks for cards by calling {tool}, which is not on PATH'
                yield Finding(
                    Status.WARN,
                    found,
                    f"install package {package} (for a container: in the container's image)",
                    f'{library} {tool}'.strip(),
                )


def voyager_toolchain(system: System, needs: Needs) -> Iterator[Finding]:
    """Check for the SDK's compiler, which a runtime older than 1.8 needs to load a model."""
    need = needs.accelerator('axruntime')
    if need is Need.REQUIRED:
        answers = [
            system.ask(describe_voyager, inference['axruntime_library'])
            for inference in needs.inferences
        ]
        releases = [str(answer.get('release', '')) for answer in answers]
        if releases and not any(map(needs_toolchain, releases)):
            yield skip(
                f'runtime {", ".join(dict.fromkeys(releases))} needs no compiler: the compiled '
                'model is complete'
            )
            return
    if need is not Need.REQUIRED and not _installed(system):
        yield skip('only accelerator axruntime needs this compiler')
        return
    found = shutil.which(TOOLCHAIN, path=system.environment.get('PATH', ''))
    if found:
        yield ok(f'{TOOLCHAIN} is {found}', path=found)
    else:
        advice = (
            f'activate the SDK, so that {TOOLCHAIN} is on PATH of the node; a systemd '
            'unit has a PATH of its own'
        )
        yield Finding(
            need.missing,
            f'{TOOLCHAIN} is not on PATH: models fail to load with "Failed to create executor"',
            advice,
            '',
            {'path': ''},
        )


@of_each_card
def metis_attach(system: System, needs: Needs, card: MetisCard) -> Finding:
    """Check that the driver can attach a dma-buf. The runtime attaches the tensors' dma-bufs."""
    with first_dmabuf(system) as buffer:
        if buffer is None:
            return skip('there is no dma-buf for this test; see check memory.heaps', card.name)
        probe = probe_shipped_attach(card.path, buffer, tree=system.host)
    figures = {'answer': probe.answer.value, 'errno': probe.number, 'heap': buffer.heap}
    if probe.answer is Importable.YES:
        return ok(f'a page of {buffer.heap} was attached and detached', card.name, **figures)
    if probe.answer is Importable.UNKNOWN and needs.accelerator('axruntime') is not Need.REQUIRED:
        return skip(probe.text, card.name, **figures)
    advice = (
        'enable the IOMMU for the card, or use a contiguous heap; see checks memory.heaps and '
        'metis.iommu'
    )
    return Finding(card_need(needs).missing, probe.text, advice, card.name, figures)
