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
One boot of the guest: QEMU's command line, the exchanged files, and the result.

A run whose command succeeded but whose kernel complained has failed: the rig exists to find bugs
such as a refcount underflow or a KFENCE report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
import os
from pathlib import Path
import re
import shlex
import shutil
import subprocess
import time

from long_form import LONG

from . import RigError, RigUnavailable
from .packages import ran

QEMU = 'qemu-system-x86_64'
INSTALL_QEMU = ('apt-get', 'install', '-y', '--no-install-recommends', 'qemu-system-x86')

#: `RigResult.rc` when the guest did not finish (a panic, a hang).
RC_NOT_FINISHED = 125
#: `RigResult.rc` when the command succeeded but the kernel complained.
RC_KERNEL_COMPLAINED = 126

# Seconds for booting and powering off, beyond the command's own time; enough for loaded machines.
_GRACE_S = 60.0
_EXCHANGED = (
    'rc', 'rc.new', 'rig_error', 'stdout', 'stderr', 'dmesg', 'kmsg.live', 'console', 'boot_s',
)  # fmt: skip
# QEMU's TCG reads the masked-out part of a masked vector load (VMASKMOV, VPMASKMOV), too. NumPy's
# sorts and ONNX Runtime's products load the ends of arrays that way, and would sometimes crash
# before an unmapped page, in the guest alone. Without AVX they don't.
_CPU = 'max,avx=off,avx2=off,f16c=off,fma=off,vaes=off,vpclmulqdq=off'


@dataclass(frozen=True)
class Machine:
    """
    The emulated machine: QEMU's program, its arguments, and the kernel's command line.

    The NPU's function is behind a port of its own and behind the IOMMU, so it is 0000:01:00.0 and
    its node /dev/metis-0:1:0.
    """

    qemu: str
    arguments: Sequence[str]
    append: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


_NPU = ('-device', 'pcie-root-port,id=npu,chassis=1', '-device', 'pci-testdev,bus=npu')
_Q35 = ('-machine', 'q35', '-accel', 'tcg', '-cpu', _CPU, '-device', 'intel-iommu,intremap=off')
# Without no_timer_check the kernel panics on a loaded host, where its timer comes too late.
X86_64 = Machine(QEMU, (*_Q35, *_NPU), ('console=ttyS0', 'intel_iommu=on', 'no_timer_check'))


def arm64(qemu: Path, environment: Mapping[str, str]) -> Machine:
    """Return QEMU's board for arm64, with an SMMU; `environment` has libraries for QEMU."""
    # Authenticated pointers are off, as they cost QEMU a quarter of the time.
    board = (
        '-machine', 'virt,iommu=smmuv3,gic-version=3', '-accel', 'tcg,tb-size=512',
        '-cpu', 'max,pauth=off',
    )  # fmt: skip
    return Machine(str(qemu), (*board, *_NPU), ('console=ttyAMA0',), environment)


@dataclass(frozen=True)
class Boot:
    """
    What to boot and what to run in it.

    :param append: goes to the kernel's command line.
    :param cpus: one processor costs this machine a third less than two for the same work; checks
        for races need two.
    :param root: the folder for the guest's files, read-only.
    :param shares: further folders, at the same path in the guest, read-only.
    """

    image: Path
    initramfs: Path
    setup: str
    command: str
    out_dir: Path
    timeout: float
    append: str = ''
    qemu_args: Sequence[str] = ()
    memory_mib: int = 4096
    cpus: int = 1
    machine: Machine = X86_64
    root: Path = Path('/')
    shares: Sequence[Path] = ()


@dataclass(frozen=True)
class RigResult:
    """The result of a run; `rc` is 0 only if the command succeeded and the kernel is healthy."""

    rc: int
    stdout: str
    stderr: str
    dmesg: str
    console: str
    artifacts: Path
    wall_s: float
    boot_s: float | None = None
    complaints: list[str] = field(default_factory=list)
    problem: str = ''

    @property
    def ok(self) -> bool:
        return self.rc == 0

    def report(self) -> str:
        """Return all that helps to understand a failure."""
        parts = [f'rig: rc {self.rc}, {self.wall_s:.1f} s, artifacts in {self.artifacts}']
        if self.problem:
            parts.append(f'rig: {self.problem}')
        if self.complaints:
            parts.append('the kernel complained:\n  ' + '\n  '.join(self.complaints))
        for title, text in (('stdout', self.stdout), ('stderr', self.stderr)):
            if text.strip():
                parts.append(f'--- {title}\n{_tail(text, 20000)}')
        if not self.ok:
            # Prefer the complete dmesg; a guest that died leaves only the console.
            title, log = ('dmesg', self.dmesg) if self.dmesg.strip() else ('console', self.console)
            parts.append(f'--- {title}\n{_tail(log, 8000)}')
        return '\n'.join(parts)

    def check(self) -> RigResult:
        assert self.ok, self.report()
        return self


def require_qemu(program: str = QEMU) -> str:
    """Return the path of QEMU; if it is missing, the error tells how to get it."""
    path = shutil.which(program)
    if not path:
        raise RigUnavailable(f'{program} is not installed: {" ".join(INSTALL_QEMU)}')
    return path


def run(boot: Boot) -> RigResult:
    out = boot.out_dir
    for name in _EXCHANGED:
        (out / name).unlink(missing_ok=True)
    mounts = ''
    for number, folder in enumerate(boot.shares):  # see build.INIT for the variables
        point = f'"$root"{shlex.quote(str(folder))}'
        mounts += f'mkdir -p {point} && mount $p9,cache=loose,ro share{number} {point} || '
        mounts += f'fail "{folder} cannot be mounted"\n'
    (out / 'setup.sh').write_text(mounts + boot.setup, encoding='utf-8')
    (out / 'command.sh').write_text(boot.command, encoding='utf-8')
    started = time.monotonic()
    problem = ''
    try:
        command = command_line(require_qemu(boot.machine.qemu), boot)
        environment, limit_s = {**os.environ, **boot.machine.environment}, boot.timeout + _GRACE_S
        qemu = ran(command, env=environment, stdin=subprocess.DEVNULL, timeout=limit_s)
        if qemu.returncode:
            raise RigError(f'QEMU ended with status {qemu.returncode}:\n{qemu.stdout}')
    except subprocess.TimeoutExpired:
        problem = f'the guest did not end within {limit_s:.0f} s and was stopped'
    return _collect(boot, time.monotonic() - started, problem)


def command_line(qemu: str, boot: Boot) -> list[str]:
    """Return the arguments that start the guest: TCG, no network, an IOMMU, the NPU."""
    append = [
        *boot.machine.append,
        # enough on the serial log to see where a hang is
        'loglevel=6 log_buf_len=4M panic=-1 oops=panic mitigations=off',
        # the guest may pause for longer than these limits by default
        'rcupdate.rcu_cpu_stall_timeout=120 watchdog_thresh=60',
        # Debian builds it in but leaves it off. Frequent samples cost the guest time.
        f'kfence.sample_interval={20 if LONG else 100}',
        boot.append,
    ]
    return [
        qemu,
        *boot.machine.arguments,
        *('-smp', str(boot.cpus), '-m', str(boot.memory_mib)),
        *('-display', 'none', '-no-reboot', '-nodefaults', '-nic', 'none'),
        *(
            '-chardev',
            f'file,id=console,path={_escaped(boot.out_dir / "console")}',
            '-serial',
            'chardev:console',
        ),
        *(
            '-kernel',
            str(boot.image),
            '-initrd',
            str(boot.initramfs),
            '-append',
            ' '.join(append).strip(),
        ),
        *_share('host', boot.root, 'readonly=on,'),
        *_share('out', boot.out_dir),
        *(
            word
            for number, folder in enumerate(boot.shares)
            for word in _share(f'share{number}', folder, 'readonly=on,')
        ),
        *boot.qemu_args,
    ]


def _share(tag: str, folder: Path, options: str = '') -> tuple[str, str]:
    return (
        '-virtfs',
        f'local,path={_escaped(folder)},mount_tag={tag},{options}security_model=none,'
        'multidevs=remap',
    )


def _escaped(path: Path) -> str:
    return str(path).replace(',', ',,')


def _collect(boot: Boot, wall_s: float, problem: str) -> RigResult:
    out = boot.out_dir
    read = {name: _read(out / name) for name in _EXCHANGED}
    boot_text, dmesg = read['boot_s'].strip(), read['dmesg'] or read['kmsg.live']
    found = complaints(dmesg or read['console'])
    rc = int(read['rc']) if read['rc'].strip().isdigit() else RC_NOT_FINISHED
    problem = problem or read['rig_error'].strip()
    if rc == RC_NOT_FINISHED and not problem:
        problem = 'the guest ended before the command did (a kernel panic?)'
    elif rc == 124 and not problem:
        problem = (
            f'the command did not end within {boot.timeout:.0f} s; dmesg shows what the '
            'kernel was at'
        )
    if rc == 0 and found:
        rc = RC_KERNEL_COMPLAINED
    boot_s = float(boot_text) if boot_text else None
    said = read['stdout'], read['stderr'], dmesg, read['console']
    return RigResult(rc, *said, out, wall_s, boot_s, found, problem)


def _read(path: Path) -> str:
    return path.read_text(encoding='utf-8', errors='replace') if path.exists() else ''


def _tail(text: str, limit: int) -> str:
    cut = len(text) - limit
    return f'[... {cut} characters before ...]\n{text[-limit:]}' if cut > 0 else text


#: A line that matches one of these is a complaint ...
_COMPLAINTS = re.compile(
    r'\b(?:BUG|WARNING|Oops|KFENCE|KASAN|UBSAN|KCSAN)\b|refcount_t\b|\bDMA-API:|\bCall Trace:'
    r'|general protection fault|[Uu]nable to handle|Kernel panic|soft lockup|hard LOCKUP'
    r'|\bINFO: task .* blocked for more than|list_(?:add|del) corruption'
    r'|\b(?:self-)?detected (?:stalls?|expedited stalls?)\b|cannot create duplicate filename'
    r'|use-after-free|double free|slab-out-of-bounds|possible (?:circular|recursive|irq lock) '
    r'|scheduling while atomic|sleeping function called|\bDMAR: (?:\[.*\] )?.*[Ff]ault'
)
#: ... unless it matches this: a configuration note at boot, register names in the IOMMU's messages
_HARMLESS = re.compile(r'Spectre V2 : WARNING: Unprivileged eBPF|\bDMAR: Fault (?:event|status)')
# ... or this: vivid sleeps until its next frame is due, and computes a negative time if the guest
# is too slow.
_VIVID_LATE = re.compile(
    r'^[^\n]*schedule_timeout: wrong timeout value \w+\n(?:(?!</TASK>)[^\n]*\n)*?'
    r'[^\n]*\bvivid_thread_\w+(?:(?!</TASK>)[^\n]*\n)*[^\n]*</TASK>',
    re.M,
)

#: From here on the rig itself requested backtraces of a command that did not end.
_SYSRQ = 'sysrq: Show Blocked State'


def complaints(log: str) -> list[str]:
    """Return the lines of `log` that no healthy kernel prints, in their order."""
    log = _VIVID_LATE.sub('', log.partition(_SYSRQ)[0])
    suspect = [line for line in log.splitlines() if _COMPLAINTS.search(line)]
    return [line for line in suspect if not _HARMLESS.search(line)]
