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
What the shipped driver is asked about a buffer, and what its answers mean.

The rig asks a kernel the same (``package_npu_faults``).
"""

from __future__ import annotations

from collections.abc import Iterator
import errno
import os
from pathlib import Path
import shutil
import subprocess
from typing import Any

from npu.host_tree import Host
import pytest

from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.npu.axl import checks as axl_probe
from zc_perception.npu.axl import device as axl_device
from zc_perception.npu.axl.checks import Importable, probe_shipped_attach

pytestmark = pytest.mark.usefixtures('no_fd_leak')


class ShippedDriver:
    """
    Attaches one buffer to each open file.

    It raises where a mistake would oops or leak in the real one.
    """

    def __init__(self) -> None:
        self.refusals: dict[int, list[int]] = {axl_probe.DMA_ATTACH: [], axl_probe.DMA_DETACH: []}
        self.attached: dict[int, int] = {}
        self.calls: list[int] = []

    def __call__(self, fd: int, request: int, argument: Any) -> int:
        os.fstat(fd)
        self.calls.append(request)
        if self.refusals[request]:
            number = self.refusals[request].pop(0)
            if number:
                raise OSError(number, os.strerror(number))
        if request == axl_probe.DMA_ATTACH:
            assert fd not in self.attached, 'a second attach forgets the first'
            self.attached[fd] = os.fstat(argument.value).st_ino
        else:
            assert fd in self.attached, 'a detach of nothing is an oops'
            del self.attached[fd]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ShippedDriver:
    driver = ShippedDriver()
    monkeypatch.setattr(axl_device.fcntl, 'ioctl', driver)
    return driver


@pytest.fixture
def node(host: Host) -> str:
    return host.add_card()


@pytest.fixture
def buffer() -> Iterator[DmaBuf]:
    buffer = SealedMemfd().allocate(4096)
    yield buffer
    buffer.close()


def test_a_buffer_that_is_attached_is_taken_back(
    driver: ShippedDriver, node: str, buffer: DmaBuf
) -> None:
    found = probe_shipped_attach(node, buffer)
    assert (found.answer, found.number) == (
        Importable.YES,
        0,
    ) and 'can import buffers of memfd' in found.text
    assert driver.calls == [axl_probe.DMA_ATTACH, axl_probe.DMA_DETACH] and driver.attached == {}
    assert not buffer.mapped


MEANINGS = {
    errno.ENOTTY: (Importable.UNKNOWN, 'not the shipped metis-dkms'),
    errno.EINVAL: (Importable.NO, 'no dma-buf'),
    errno.ENOMEM: (Importable.NO, 'IOMMU'),
    524: (Importable.NO, 'exporter'),
    errno.EACCES: (Importable.NO, 'denied'),
    errno.EFAULT: (Importable.UNKNOWN, 'another ioctl'),
    errno.ENODEV: (Importable.UNKNOWN, 'lspci -d 1f9d:'),
    errno.EDOM: (Importable.NO, 'dmesg'),  # one that nobody expects
}


@pytest.mark.parametrize('number', MEANINGS)
def test_a_refusal_is_explained_and_nothing_is_detached(
    driver: ShippedDriver, node: str, buffer: DmaBuf, number: int
) -> None:
    driver.refusals[axl_probe.DMA_ATTACH] = [number]
    found = probe_shipped_attach(node, buffer)
    answer, words = MEANINGS[number]
    assert (
        (found.answer, found.number) == (answer, number)
        and words in found.text
        and '\n' not in found.text
    )
    assert (errno.errorcode.get(number) or 'ENOTSUPP') in found.text and 'memfd' in found.text
    assert driver.calls == [axl_probe.DMA_ATTACH]


def test_a_detach_that_fails_is_said_and_the_file_is_closed_all_the_same(
    driver: ShippedDriver, node: str, buffer: DmaBuf
) -> None:
    driver.refusals[axl_probe.DMA_DETACH] = [errno.EBUSY]
    found = probe_shipped_attach(node, buffer)
    assert (
        found.answer is Importable.YES
        and 'EBUSY' in found.text
        and 'when its file was closed' in found.text
    )


def test_an_interruption_leaves_no_file_open(
    node: str, buffer: DmaBuf, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It outlives the probe with all that the probe had: nothing is closed by being collected.
    interruption = KeyboardInterrupt()
    opened: list[int] = []

    def interrupt(fd: int, *_: object) -> int:
        opened.append(fd)
        raise interruption

    monkeypatch.setattr(axl_device.fcntl, 'ioctl', interrupt)
    with pytest.raises(KeyboardInterrupt):
        probe_shipped_attach(node, buffer)
    with pytest.raises(OSError, match='Bad file descriptor'):
        os.fstat(opened[0])


def test_a_node_that_can_t_be_opened_answers_nothing(
    driver: ShippedDriver, host: Host, buffer: DmaBuf
) -> None:
    host.add_card()
    found = probe_shipped_attach(str(host.tree.dev / 'metis-9:9:9'), buffer, tree=host.tree)
    assert (
        (found.answer, found.number) == (Importable.UNKNOWN, errno.ENOENT)
        and 'found ' in found.text
        and 'metis-0:1:0' in found.text
    )
    assert driver.calls == []


def test_a_device_without_these_ioctls_says_so(buffer: DmaBuf) -> None:
    """The errno is the kernel's own ENOTTY."""
    found = probe_shipped_attach('/dev/null', buffer)
    assert (found.answer, found.number) == (
        Importable.UNKNOWN,
        errno.ENOTTY,
    ) and "'U' 5" in found.text


def test_the_numbers_are_what_a_c_compiler_makes_of_the_shipped_driver_s_header(
    tmp_path: Path,
) -> None:
    compiler = shutil.which('cc') or shutil.which('gcc')
    assert compiler, 'a C compiler is needed: apt-get install gcc'
    source = tmp_path / 'numbers.c'
    source.write_text(
        '#include <stdio.h>\n#include <sys/ioctl.h>\n'
        'int main(void) { printf("%lu %lu", (unsigned long)_IOWR(\'U\', 5, int), (unsigned '
        "long)_IOWR('U', 6, int)); return 0; }\n",
        encoding='utf-8',
    )
    subprocess.run([compiler, '-o', str(tmp_path / 'numbers'), str(source)], check=True)
    said = subprocess.run(
        [str(tmp_path / 'numbers')], check=True, capture_output=True, text=True
    ).stdout
    assert said.split() == [str(axl_probe.DMA_ATTACH), str(axl_probe.DMA_DETACH)]
