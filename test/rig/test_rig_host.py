"""What of the rig can be tested without booting anything."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from environment.errors import SetupError

from . import RigError, RigUnavailable, cache, cpio, initramfs, kernel_log, machine, module_build, packages
from . import rig as rig_module
from .guest import camera_checks, memory_checks
from .guest.long_checks import LONG_CHECKS
from .test_rig_graph import guest_checks
from .virtual_result import BRIGHT, DARK, PlanePixels, VirtualResult, expected_boxes, expected_crcs

# --- the archive -----------------------------------------------------------------------------------

ENTRIES = [
    cpio.Entry.folder('bin'),
    cpio.Entry.file('bin/tool', b'\x7fELF', executable=True),
    cpio.Entry.file('empty', b''),
    cpio.Entry.file('odd', b'12345'),
]


def _parsed(data: bytes) -> list[tuple[str, int, bytes]]:
    """Read a newc archive by the kernel's description of it."""
    members: list[tuple[str, int, bytes]] = []
    position = 0
    while True:
        assert data[position : position + 6] == b'070701'
        fields = [int(data[position + 6 + 8 * index : position + 14 + 8 * index], 16) for index in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = data[position + 110 : position + 110 + name_size]
        assert name.endswith(b'\0')
        start = -(-(position + 110 + name_size) // 4) * 4
        if name == b'TRAILER!!!\0':
            return members
        members.append((name[:-1].decode(), mode, data[start : start + size]))
        position = -(-(start + size) // 4) * 4


def test_the_archive_follows_the_format() -> None:
    assert _parsed(cpio.archive(ENTRIES)) == [(entry.path, entry.mode, entry.data) for entry in ENTRIES]
    assert [stat.filemode(entry.mode) for entry in ENTRIES] == ['drwxr-xr-x', '-rwxr-xr-x', '-rw-r--r--', '-rw-r--r--']


def test_cpio_reads_the_archive(tmp_path: Path) -> None:
    if not shutil.which('cpio'):
        pytest.skip('no cpio to compare with: apt-get install cpio')
    subprocess.run(['cpio', '-i', '--quiet'], input=cpio.archive(ENTRIES), cwd=tmp_path, check=True)
    assert (tmp_path / 'bin/tool').read_bytes() == b'\x7fELF'
    assert (tmp_path / 'odd').read_bytes() == b'12345'


def test_the_init_script_is_valid_shell() -> None:
    subprocess.run(['sh', '-n'], input=initramfs.INIT.encode(), check=True)


# --- the kernel's log ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'line',
    [
        '[    5.1] WARNING: CPU: 1 PID: 99 at lib/refcount.c:28 refcount_warn_saturate+0xba/0x110',
        '[    5.1] refcount_t: underflow; use-after-free.',
        '[    5.1] BUG: kernel NULL pointer dereference, address: 0000000000000008',
        '[    5.1] kernel BUG at mm/slub.c:448!',
        '[    5.1] BUG: KFENCE: use-after-free read in axl_release+0x12/0x40 [metis_virtual]',
        '[    5.1] BUG kmalloc-96 (Tainted: G           OE     ): Poison overwritten',
        '[    5.1] Oops: general protection fault, probably for non-canonical address',
        '[    5.1] Oops: 0000 [#1] PREEMPT SMP NOPTI',
        '[    5.1] list_del corruption, ffff8881 -> next is LIST_POISON1',
        '[  130.1] INFO: task python3:123 blocked for more than 120 seconds.',
        '[   30.1] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:',
        '[   30.1] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [kworker]',
        '[    5.1] DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0xffe00000',
        '[    5.1] BUG: sleeping function called from invalid context at kernel/locking/mutex.c:585',
        '[    5.1] Fence axl:metis-0:1:2 released with pending signals!\n[    5.1] Call Trace:',
        '[    5.1] Kernel panic - not syncing: sysrq triggered crash',
    ],
)
def test_complaints_are_found(line: str) -> None:
    assert kernel_log.complaints(f'[    1.0] fine\n{line}\n[    6.0] fine') != []


@pytest.mark.parametrize(
    'line',
    [
        '[    0.3] kfence: initialized - using 2097152 bytes for 255 objects at 0x(____ptrval____)',
        '[    4.8] metis_virtual: loading out-of-tree module taints kernel.',
        '[    4.8] metis_virtual: module verification failed: signature and/or required key missing - tainting kernel',
        '[    0.1] Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on, data leaks possible',
        '[    1.5] DMAR: Host address width 39',
        '[    1.5] PCI: Using ACPI for IRQ routing, debug output is off',
        '[    2.0] RAS: Correctable Errors collector initialized.',
    ],
)
def test_harmless_lines_are_no_complaints(line: str) -> None:
    assert kernel_log.complaints(line) == []


def test_backtraces_that_the_rig_asked_for_are_no_complaints() -> None:
    log = '[   60.0] sysrq: Show Blocked State\n[   60.1] Call Trace:'
    assert kernel_log.complaints(log) == []
    assert kernel_log.complaints(f'[    5.0] BUG: bad page state\n{log}') == ['[    5.0] BUG: bad page state']


# --- caches ----------------------------------------------------------------------------------------


def _kernel(root: Path, version: str = '6.12.1+deb12') -> packages.Kernel:
    return packages.Kernel(version, root)


def test_the_module_is_built_again_when_anything_changes(tmp_path: Path) -> None:
    for name, text in (('a.c', 'int a;'), ('b.h', 'int b;'), ('Kbuild', 'obj-m := a.o'), ('notes.txt', 'x')):
        (tmp_path / name).write_text(text, encoding='utf-8')

    def key(version: str = '6.12.1+deb12') -> str:
        return module_build.cache_key(_kernel(tmp_path, version), module_build.sources(tmp_path))

    first = key()
    assert key() == first
    assert key('6.12.2+deb12') != first
    (tmp_path / 'notes.txt').write_text('y', encoding='utf-8')
    assert key() == first
    for name in ('a.c', 'b.h', 'Kbuild'):
        before = (tmp_path / name).read_text(encoding='utf-8')
        (tmp_path / name).write_text(before + '\n', encoding='utf-8')
        assert key() != first, name
        (tmp_path / name).write_text(before, encoding='utf-8')
    (tmp_path / 'a.c').rename(tmp_path / 'c.c')
    assert key() != first


class Archive:
    """Stands in for the network: one kernel version, or none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.version: str | None = '6.12.1+deb12'
        self.asked = 0
        monkeypatch.setattr(packages, 'resolve_dependency', self._resolve)
        monkeypatch.setattr(packages, '_fetch', self._fetch)

    def _resolve(self, meta: str, prefix: str, architecture: str = '') -> str:
        self.asked += 1
        if self.version is None:
            raise SetupError(f'no network for {meta}')
        flavour = meta.removeprefix(f'linux-image-{packages.SERIES}-')
        return f'{prefix}{self.version}-{flavour}'

    def _fetch(self, kernel: packages.Kernel) -> None:
        for file in (kernel.image, *(kernel.root / 'modules' / f'{name}.ko' for name in kernel.wanted_modules)):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()

    def current(self, now: float, flavour: str = packages.ORDINARY) -> str:
        """Return the version that is used at the time `now`."""
        return packages.current(self.folder, flavour, now=now).version


def test_a_newer_kernel_is_looked_for_once_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(monkeypatch, tmp_path)
    day = 24 * 3600.0
    assert [archive.current(now) for now in (0.0, 10.0, day - 1)] == ['6.12.1+deb12'] * 3
    assert archive.asked == 1
    archive.version = '6.12.2+deb12'
    assert archive.current(day) == '6.12.2+deb12'
    archive.version = None
    assert [archive.current(now) for now in (2 * day, 2 * day + 1)] == ['6.12.2+deb12'] * 2
    assert archive.asked == 3
    assert sorted(path.name for path in (tmp_path / 'kernels').iterdir()) == ['6.12.1+deb12', '6.12.2+deb12']
    for number in (3, 4):
        archive.version = f'6.12.{number}+deb12'
        archive.current(number * day)
    assert len(list((tmp_path / 'kernels').iterdir())) == 2


def test_a_cached_kernel_without_a_module_that_is_wanted_now_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(monkeypatch, tmp_path)
    archive.current(0.0)
    module = tmp_path / 'kernels/6.12.1+deb12/modules/uvcvideo.ko'
    module.unlink()
    archive.current(1.0)
    assert module.is_file()


@pytest.mark.parametrize('content', ['', 'no json', '{}', '{"version": "6.12.9+deb12", "checked": 0}', '{"version": 1}'])
def test_a_damaged_cache_is_filled_again(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(monkeypatch, tmp_path)
    (tmp_path / 'kernel.json').write_text(content, encoding='utf-8')
    assert archive.current(1.0) == '6.12.1+deb12'
    assert json.loads((tmp_path / 'kernel.json').read_text(encoding='utf-8'))['version'] == '6.12.1+deb12'


def test_no_network_and_no_cache_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(monkeypatch, tmp_path)
    archive.version = None
    with pytest.raises(RigUnavailable, match=r'no network for linux-image-6\.12-amd64'):
        archive.current(0.0)
    with pytest.raises(RigUnavailable, match=r'no network for linux-image-6\.12-rt-amd64'):
        archive.current(0.0, packages.REAL_TIME)


def test_the_real_time_kernel_is_a_kernel_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(monkeypatch, tmp_path)
    assert archive.current(0.0, packages.REAL_TIME) == '6.12.1+deb12'
    assert (tmp_path / 'kernels/6.12.1+deb12/boot/vmlinuz-6.12.1+deb12-rt-amd64').is_file()


def test_a_kernel_that_there_is_not_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('ZC_RIG_KERNEL', 'rt')
    with pytest.raises(RigError, match=r"no kernel 'rt'; set ZC_RIG_KERNEL to one of amd64, rt-amd64"):
        rig_module.Rig()


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / 'parent/target'
    with pytest.raises(RuntimeError), cache.appearing(target) as scratch:
        (scratch / 'half').touch()
        raise RuntimeError
    assert list(target.parent.iterdir()) == []
    with cache.appearing(target) as scratch:
        (scratch / 'whole').touch()
    assert [path.name for path in target.parent.rglob('*')] == ['target', 'whole']


def test_a_cache_in_which_nothing_can_be_built_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RigUnavailable, match=r'has a space or a colon .* set XDG_CACHE_HOME'):
        cache.checked_folder(tmp_path / 'with space')


def test_modules_load_after_what_they_need(tmp_path: Path) -> None:
    files = {}
    for name, needs in (('camera', 'core,buffers'), ('buffers', 'core'), ('core', ''), ('other', '')):
        files[name] = tmp_path / f'{name}.ko'
        files[name].write_bytes(b'\0license=GPL\0depends=%s\0name=x\0' % needs.encode())
    assert [path.stem for path in packages.load_order(files, ['camera', 'core'])] == ['core', 'buffers', 'camera']
    with pytest.raises(RigError, match="no module 'missing'"):
        packages.load_order(files, ['missing'])


# --- what is missing is named ----------------------------------------------------------------------


def test_a_missing_qemu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    with pytest.raises(RigUnavailable, match=r'qemu-system-x86_64 is not installed: apt-get install .* qemu-system-x86$'):
        rig_module.Rig(cache_folder=tmp_path, install=False).prepare()


FAKE_APT = """#!/bin/sh
echo "$*" >> {log}
case "$1" in
    update) touch {log}.updated ;;
    install)
        [ -e {log}.updated ] || {{ echo "E: Unable to fetch some archives"; exit 100; }}
        printf '#!/bin/sh\\n' > {folder}/qemu-system-x86_64
        {chmod} +x {folder}/qemu-system-x86_64 ;;
esac
"""


def _machine_with_apt(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Make a PATH with nothing but the apt-get given; return the log of its calls."""
    log = folder / 'apt.log'
    (folder / 'bin').mkdir()
    apt = folder / 'bin/apt-get'
    apt.write_text(script.format(log=log, folder=folder / 'bin', chmod=shutil.which('chmod')), encoding='utf-8')
    apt.chmod(0o755)
    (folder / 'bin/touch').symlink_to(str(shutil.which('touch')))
    monkeypatch.setenv('PATH', str(folder / 'bin'))
    monkeypatch.setattr(os, 'geteuid', lambda: 0)
    return log


def test_qemu_is_installed_where_the_rig_is_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _machine_with_apt(tmp_path, monkeypatch, FAKE_APT)
    monkeypatch.setenv('ZC_RIG', 'required')
    # What comes after QEMU is missing as well.
    monkeypatch.setattr(packages, 'current', lambda folder, flavour: pytest.fail('far enough', pytrace=False))
    with pytest.raises(pytest.fail.Exception, match='far enough'):
        rig_module.Rig(cache_folder=tmp_path / 'cache').prepare()
    install = ' '.join(machine.INSTALL_QEMU[1:])
    assert log.read_text(encoding='utf-8').splitlines() == [install, 'update', install]


def test_nothing_is_installed_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _machine_with_apt(tmp_path, monkeypatch, FAKE_APT)
    monkeypatch.delenv('ZC_RIG', raising=False)
    with pytest.raises(RigUnavailable, match='qemu-system-x86_64 is not installed'):
        rig_module.Rig(cache_folder=tmp_path / 'cache').prepare()
    assert not log.exists()


def test_an_installation_that_fails_shows_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _machine_with_apt(tmp_path, monkeypatch, '#!/bin/sh\necho "E: Unable to locate package"; exit 100\n')
    with pytest.raises(RigUnavailable, match=r'(?s)qemu-system-x86 failed:\n.*E: Unable to locate package'):
        rig_module.Rig(cache_folder=tmp_path / 'cache', install=True).prepare()


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'boot').mkdir()
    config = tmp_path / 'boot/config-6.12.1+deb12-amd64'
    config.write_text('CONFIG_CC_VERSION_TEXT="x86_64-linux-gnu-gcc-12 (Debian 12.2.0)"\n', encoding='utf-8')
    monkeypatch.setattr(shutil, 'which', lambda name, path=None: None)
    with pytest.raises(RigUnavailable, match='gcc-12 and make: apt-get install gcc-12 make'):
        module_build.build(_kernel(tmp_path), tmp_path)


def test_a_source_that_does_not_compile_shows_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'boot').mkdir()
    (tmp_path / 'boot/config-6.12.1+deb12-amd64').write_text('CONFIG_CC_VERSION_TEXT="sh"\n', encoding='utf-8')
    headers = tmp_path / 'usr/src/linux-headers-6.12.1+deb12-amd64'
    headers.mkdir(parents=True)
    (headers / 'Makefile').write_text('modules:\n\t@echo axl.c:1: error: no; exit 2\n', encoding='utf-8')
    with pytest.raises(RigError, match=r'(?s)did not build for 6\.12\.1\+deb12:\n.*axl\.c:1: error: no'):
        module_build.build(_kernel(tmp_path), tmp_path)
    assert not list((tmp_path / 'modules').iterdir())


def test_paths_with_commas_reach_qemu_whole(tmp_path: Path) -> None:
    out = tmp_path / "with space, comma 'and quote'"
    boot = machine.Boot(image=Path('i'), initramfs=Path('r'), setup='', command='', out_dir=out, timeout=1, append='quiet')
    arguments = machine.command_line('qemu', boot)
    share = next(argument for argument in arguments if 'mount_tag=out' in argument)
    assert f"path={tmp_path}/with space,, comma 'and quote',mount_tag=out" in share
    assert arguments[arguments.index('-append') + 1].endswith(' quiet')


# --- the second computation of the result -----------------------------------------------------------


def test_the_layout_of_the_result_is_that_of_the_header(tmp_path: Path) -> None:
    compiler = shutil.which('gcc') or pytest.skip('no C compiler: apt-get install gcc')
    names = [field[0] for field in VirtualResult._fields_]
    prints = ''.join(f'printf(" %zu", offsetof(struct axl_virtual_result, {name}));' for name in names)
    header = module_build.MODULE_SOURCES / 'axl_virtual.h'
    (tmp_path / 'layout.c').write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\n'
        f'int main(void) {{ printf("%zu", sizeof(struct axl_virtual_result)); {prints} return 0; }}\n',
        encoding='utf-8',
    )
    subprocess.run([str(compiler), '-o', str(tmp_path / 'layout'), str(tmp_path / 'layout.c')], check=True)
    output = subprocess.run([str(tmp_path / 'layout')], capture_output=True, text=True, check=True).stdout
    offsets = [getattr(VirtualResult, name).offset for name in names]
    assert [int(word) for word in output.split()] == [ctypes.sizeof(VirtualResult), *offsets]


def _scene(*bright: tuple[int, int], dark: tuple[tuple[int, int], ...] = ()) -> PlanePixels:
    """Return 8 by 4 blocks of grey with some bright and dark ones, given as (column, row)."""
    data = bytearray(b'\x80' * (128 * 64))
    for level, places in ((0xFF, bright), (0, dark)):
        for column, row in places:
            for y in range(row * 16, row * 16 + 16):
                data[y * 128 + column * 16 : y * 128 + column * 16 + 16] = bytes((level,)) * 16
    return PlanePixels(bytes(data), 128)


def test_boxes_of_a_scene_drawn_by_hand() -> None:
    # The frame's mean is (30 * 128 + 2 * 255) // 32 = 135.
    assert expected_boxes('R8', 128, 64, _scene((1, 1), (2, 1))) == [(16, 16, 48, 32, 120 * 32767 // 255, BRIGHT)]
    diagonal = _scene((0, 0), (1, 1))
    assert expected_boxes('R8', 128, 64, diagonal) == []
    both = _scene((5, 0), (5, 1), (4, 1), dark=((0, 2), (0, 3)))
    boxes = expected_boxes('R8', 128, 64, both)
    assert [(*box[:4], box[5]) for box in boxes] == [(64, 0, 96, 32, BRIGHT), (0, 32, 16, 64, DARK)]
    assert expected_boxes('R8', 15, 64, both) == []


def test_crcs_are_those_of_the_rows_alone() -> None:
    # zlib's well-known check value is that of '123456789'.
    padded = PlanePixels(b'...123xx456xx789', stride=5, offset=3)
    assert expected_crcs('R8', 3, 3, [padded]) == [0xCBF43926]


@pytest.mark.parametrize(
    ('consoles', 'boots', 'rc'),
    [
        (['Oops: int3: 0000 [#1] PREEMPT SMP', ''], 2, 0),
        (['Oops: int3: 0000 [#1]', 'Oops: int3: 0000 [#1]'], 2, machine.RC_NOT_FINISHED),
        (['Oops: general protection fault', ''], 1, machine.RC_NOT_FINISHED),
    ],
)
def test_only_what_emulation_breaks_is_booted_again_and_only_once(
    consoles: list[str], boots: int, rc: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[machine.Boot] = []

    def boot(given: machine.Boot) -> machine.RigResult:
        seen.append(given)
        console = consoles[len(seen) - 1]
        return machine.RigResult(machine.RC_NOT_FINISHED if console else 0, '', '', '', console, tmp_path, 1.0)

    kernel = SimpleNamespace(image=tmp_path, busybox=tmp_path)
    monkeypatch.setattr(rig_module.Rig, '_prepared', lambda self: (kernel, tmp_path, tmp_path))
    monkeypatch.setattr(machine, 'run', boot)
    assert rig_module.Rig().run(['true'], timeout=1, out_dir=tmp_path).rc == rc
    assert len(seen) == boots


# --- what only the long form runs ------------------------------------------------------------------


def test_each_check_that_is_left_to_the_long_form_exists() -> None:
    assert set(LONG_CHECKS) <= {*camera_checks.CHECKS, *memory_checks.CHECKS, *guest_checks()}
