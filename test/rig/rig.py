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

"""The rig's interface: prepare once, run commands in fresh guests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import os
from pathlib import Path
import shlex
import shutil
import subprocess
from typing import Any

from environment.paths import cache_folder, locked
from long_form import LONG

from . import build, machine, packages, RigError, RigUnavailable
from .build import GUEST_SHARE

#: One camera, /dev/video0, with the single-planar API.
VIVID_DEFAULT = 'n_devs=1 node_types=0x1'

_GUEST_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'


class Rig:
    """
    A kernel, a module and an initramfs in a cache, and a way to run commands on them.

    ``install`` allows `prepare` to install QEMU with apt; by default only where a missing rig
    would be an error (``ZC_RIG=required``). ``folder`` is that of the cache, by default one for
    each flavour. ``flavour`` is one of `packages.FLAVOURS`, by default
    the value of ``ZC_RIG_KERNEL``.
    """

    def __init__(
        self, *, folder: str = '', install: bool | None = None, flavour: str = ''
    ) -> None:
        """Choose the kernel and the cache folder for it; nothing is fetched before `prepare`."""
        self._flavour = flavour or os.environ.get('ZC_RIG_KERNEL') or packages.ORDINARY
        if self._flavour not in packages.FLAVOURS:
            raise RigError(
                f"the rig has no kernel '{self._flavour}'; set ZC_RIG_KERNEL to one of "
                f'{", ".join(packages.FLAVOURS)}'
            )
        folder = folder or ('' if self._flavour == packages.ORDINARY else self._flavour)
        self._cache_folder = cache_folder() / 'rig' / folder
        self._install = os.environ.get('ZC_RIG') == 'required' if install is None else install
        self._ready: tuple[packages.Kernel, Path, Path] | None = None

    def prepare(self) -> packages.Kernel:
        """Fetch, build and cache missing parts; raise `RigUnavailable` if that fails."""
        return self._prepared()[0]

    def _prepared(self) -> tuple[packages.Kernel, Path, Path]:
        if self._ready is None:
            folder = packages.checked_folder(self._cache_folder)
            lock = folder / 'lock'
            with locked(
                lock, f'rig: waiting for another process that prepares the rig (it holds {lock})'
            ):
                self._ready = self._made(folder)
        return self._ready

    def _made(self, folder: Path) -> tuple[packages.Kernel, Path, Path]:
        """Return kernel, module and initramfs from the locked cache."""
        if self._install:
            _install_qemu()
        machine.require_qemu()
        kernel = packages.current(folder, self._flavour)
        return kernel, build.module(kernel, folder), build.initramfs(kernel, folder)

    def _place(self) -> dict[str, Any]:
        """Return `machine.Boot`'s fields for machine and files; here this machine's own."""
        return {}

    def run(
        self,
        command: Sequence[str],
        *,
        timeout: float,
        out_dir: Path,
        vivid: str | bool = False,
        usb: bool = False,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> machine.RigResult:
        """
        Run `command` as root in a fresh guest.

        Its artifacts go to ``$RIG_OUT``, which is `out_dir`. The guest sees this machine's files,
        read-only under a writable layer that is thrown away. ``vivid`` is True for a camera, or
        the parameters of the vivid module; ``usb`` is for webcams that the command plugs in. The
        virtual Metis is always present. `options` are further fields of `machine.Boot`.
        """
        kernel, module, archive = self._prepared()
        out_dir.mkdir(parents=True, exist_ok=True)
        variables = {
            'PATH': _GUEST_PATH, 'HOME': '/run/root', 'LANG': 'C.UTF-8',
            'XDG_RUNTIME_DIR': '/run/user/0', 'ZC_LONG': '1' if LONG else '',
            'RIG_OUT': GUEST_SHARE, 'RIG_MODULE': str(module), 'RIG_BUSYBOX': str(kernel.busybox),
            **(env or {}),
        }  # fmt: skip
        wanted = [*(['vivid'] if vivid else []), *(packages.USB_MODULES if usb else ())]
        given = {'vivid': VIVID_DEFAULT if vivid is True else vivid or ''}
        setup = ''
        for path in (*(kernel.load_order(wanted) if wanted else ()), module):
            words = shlex.join(shlex.split(given.get(path.stem, '')))
            setup += f'insmod "$root"{shlex.quote(str(path))} {words} || '
            setup += f'fail "the module {path.name} does not load"\n'
        boot = machine.Boot(
            image=kernel.image,
            initramfs=archive,
            setup=setup,
            command=_script(command, variables, timeout),
            out_dir=out_dir.resolve(),
            timeout=timeout,
            **options,
            **self._place(),
        )
        result = machine.run(boot)
        # The kernel sets a breakpoint for a moment to rewrite code, and ensures that no processor
        # can hit it; QEMU's translated code breaks that rule. It is no fault of ours.
        if result.rc == machine.RC_NOT_FINISHED and 'Oops: int3' in result.console:
            result = machine.run(boot)  # only one retry
        return result


def _script(command: Sequence[str], variables: Mapping[str, str], timeout: float) -> str:
    exports = ''.join(f'export {name}={shlex.quote(value)}\n' for name, value in variables.items())
    # The guest ends the command itself, so that the kernel log shows a hang.
    return (
        f'{exports}cd {shlex.quote(os.getcwd())} || exit 1\nexec timeout -k 5 {timeout:g} '
        f'{shlex.join(command)}\n'
    )


def _install_qemu() -> None:
    """Install QEMU if it is missing and this user may; a failure shows as a missing QEMU."""
    if shutil.which(machine.QEMU):
        return
    sudo = [] if os.geteuid() == 0 else ['sudo', '-n']
    if not shutil.which('apt-get') or (sudo and not shutil.which('sudo')):
        return
    environment = {**os.environ, 'DEBIAN_FRONTEND': 'noninteractive'}
    result = None
    for step in (machine.INSTALL_QEMU, ('apt-get', 'update'), machine.INSTALL_QEMU):
        result = subprocess.run(
            [*sudo, *step],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if step == machine.INSTALL_QEMU and result.returncode == 0:
            return
    if result is not None:
        raise RigUnavailable(f'{" ".join(machine.INSTALL_QEMU)} failed:\n{result.stdout[-2000:]}')
