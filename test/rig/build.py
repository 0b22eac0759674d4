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
What is built for a kernel: the virtual Metis module, and the guest's first user space.

The module is built outside the source tree, once per content. The first user space mounts the
host's root, runs one command and powers off; the host's root is below an overlay. Its archive is a
static busybox and one shell script. Everything that differs from run to run (modules to load, the
command) is on the share with the artifacts, so that the archive is built once per kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import gzip
import hashlib
import os
from pathlib import Path
import shutil
import stat

from . import RigError, RigUnavailable
from .packages import appearing, BOOT_MODULES, keep_newest, Kernel, ran

_SOURCES = Path(__file__).resolve().parent / 'module'


@dataclass(frozen=True)
class CrossCompiler:
    """
    A compiler for another architecture.

    :param prefix: prefix of its programs' names, such as ``aarch64-linux-gnu-``.
    :param architecture: the kernel's name for it.
    :param environment: environment of its programs; ``PATH`` leads to them.
    """

    prefix: str
    architecture: str
    environment: Mapping[str, str]

    def options(self, compiler: str) -> list[str]:
        return [
            f'ARCH={self.architecture}',
            f'CROSS_COMPILE={self.prefix}',
            f'CC={self.prefix}{compiler}',
        ]


def module(kernel: Kernel, cache: Path, cross: CrossCompiler | None = None) -> Path:
    """Return the built module; rebuild it only if its sources or the kernel changed."""
    files = sorted([*_SOURCES.glob('*.[ch]'), _SOURCES / 'Kbuild'])
    # The key changes with the kernel, and with the name and content of any source.
    digest = hashlib.sha256(kernel.version.encode())
    for path in files:
        content = path.read_bytes()
        digest.update(b'\0%s\0%d\0' % (path.name.encode(), len(content)) + content)
    home = cache / 'modules' / digest.hexdigest()[:32]
    built = home / 'metis_virtual.ko'
    if built.is_file():
        home.touch()
        return built
    compiler = f'{cross.prefix if cross else ""}{kernel.compiler}'
    environment = {**os.environ, **(cross.environment if cross else {})}
    missing = [
        tool for tool in (compiler, 'make') if not shutil.which(tool, path=environment.get('PATH'))
    ]
    if missing:
        raise RigUnavailable(
            f"building the rig's kernel module needs {' and '.join(missing)}: apt-get install "
            f'{" ".join(missing)}'
        )
    with appearing(home) as scratch:
        for path in files:
            shutil.copyfile(path, scratch / path.name)
        # The empty CONFIG_DEBUG_INFO_BTF_MODULES turns BTF off, which would need pahole.
        options = [
            f'-j{os.cpu_count() or 1}', f'M={scratch}', 'CONFIG_DEBUG_INFO_BTF_MODULES=', 'W=1',
            'KCFLAGS=-Werror', *(cross.options(kernel.compiler) if cross else ()),
        ]  # fmt: skip
        result = ran(['make', '-C', str(kernel.headers), *options, 'modules'], env=environment)
        if result.returncode:
            raise RigError(
                f"the rig's kernel module did not build for {kernel.version}:\n{result.stdout}"
            )
    keep_newest((cache / 'modules').iterdir(), 4)
    return built


#: Where the guest mounts the writable share.
GUEST_SHARE = '/rig'

# The command's exit status is renamed into place last: without `rc` the guest did not finish.
INIT = f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev

fail() {{
    echo "rig: $*" > /dev/kmsg
    [ -d $root{GUEST_SHARE} ] && echo "$*" > $root{GUEST_SHARE}/rig_error
    dmesg
    sync
    poweroff -f
}}

root=/upper/root
for module in /modules/*.ko; do
    insmod $module || fail "the boot module $module does not load"
done
p9="-t 9p -o trans=virtio,version=9p2000.L,msize=512000"
mount $p9,cache=loose,ro host /lower || fail "the host's root cannot be mounted"
mount -t tmpfs tmpfs /upper
mkdir -p /upper/changes /upper/work $root
mount -t overlay -o lowerdir=/lower,upperdir=/upper/changes,workdir=/upper/work overlay $root ||
    fail "the overlay cannot be mounted"
mkdir -p $root/proc $root/sys $root/dev $root/run $root{GUEST_SHARE}
mount $p9 out $root{GUEST_SHARE} || fail "the share for the artifacts cannot be mounted"
for point in proc sys dev; do
    mount --move /$point $root/$point
done
mkdir -p $root/dev/shm $root/dev/pts
mount -t tmpfs -o mode=1777 shm $root/dev/shm
mount -t devpts pts $root/dev/pts
mount -t tmpfs run $root/run
mkdir -p -m 0700 $root/run/user/0 $root/run/root
mount -t debugfs debugfs $root/sys/kernel/debug
mount -t tracefs tracefs $root/sys/kernel/tracing
ln -sfn /proc/self/fd $root/dev/fd
ln -sfn fd/0 $root/dev/stdin
ln -sfn fd/1 $root/dev/stdout
ln -sfn fd/2 $root/dev/stderr

# ROS 2 discovers over multicast, and this machine has no network but itself.
ifconfig lo 127.0.0.1 up
route add -net 224.0.0.0 netmask 240.0.0.0 lo
hostname rig

cat $root/dev/kmsg > $root{GUEST_SHARE}/kmsg.live &
. $root{GUEST_SHARE}/setup.sh
cut -d' ' -f1 $root/proc/uptime > $root{GUEST_SHARE}/boot_s
share=$root{GUEST_SHARE}
chroot $root /bin/sh {GUEST_SHARE}/command.sh > $share/stdout 2> $share/stderr
rc=$?
if [ $rc = 124 ]; then
    # Timed out: what blocked tasks and processors are at (machine.py knows the first line).
    echo w > $root/proc/sysrq-trigger
    echo l > $root/proc/sysrq-trigger
fi
dmesg > $root{GUEST_SHARE}/dmesg
echo $rc > $root{GUEST_SHARE}/rc.new
mv $root{GUEST_SHARE}/rc.new $root{GUEST_SHARE}/rc
sync
poweroff -f
"""


def initramfs(kernel: Kernel, cache: Path) -> Path:
    """Return the compressed archive for `kernel`, remade when the script or the kernel changed."""
    key = hashlib.sha256(f'{kernel.version}\n{INIT}'.encode()).hexdigest()[:16]
    target = cache / f'initramfs-{key}.cpio.gz'
    if not target.is_file():
        scratch = target.with_suffix('.new')
        scratch.write_bytes(gzip.compress(_archive(kernel), 1))
        scratch.rename(target)
    target.touch()
    keep_newest(cache.glob('initramfs-*.cpio.gz'), 4)
    return target


def _archive(kernel: Kernel) -> bytes:
    program, folder = stat.S_IFREG | 0o755, stat.S_IFDIR | 0o755
    folders = ('bin', 'proc', 'sys', 'dev', 'modules', 'lower', 'upper')
    programs = {'bin/busybox': kernel.busybox.read_bytes(), 'init': INIT.encode()}
    for number, module in enumerate(kernel.load_order(BOOT_MODULES)):
        programs[f'modules/{number:02d}-{module.name}'] = module.read_bytes()
    members = [
        *((name, folder, b'') for name in folders),
        *((name, program, content) for name, content in programs.items()),
        ('TRAILER!!!', 0, b''),
    ]
    return b''.join(_member(number, *member) for number, member in enumerate(members, start=1))


def _member(number: int, path: str, mode: int, data: bytes) -> bytes:
    """
    Return one member of the archive (cpio "newc"): a plain Debian has no program for it.

    The format is that of Documentation/driver-api/early-userspace/buffer-format.rst in the kernel
    tree.
    """
    name, links = path.encode() + b'\0', 2 if stat.S_ISDIR(mode) else 1
    # ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor,
    # namesize, check
    fields = (number, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name), 0)
    header = b'070701' + b''.join(b'%08x' % field for field in fields) + name
    return b''.join(part + bytes(-len(part) % 4) for part in (header, data))
