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
A simulated vehicle in a folder, with attributes that break it.

Its files are those of a healthy kernel, written after the kernel's documents. Buffers are memfds
that pass as dma-bufs, the camera is the tests' V4L2 driver, and a table holds the answers of other
processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import copy
import errno
import os
from pathlib import Path
from typing import Any

from camera.v4l2_double import DriverDouble
from npu.card_kit import Host

from zc_perception.camera.v4l2 import abi as v4l2
from zc_perception.camera.v4l2.device import DeviceFile
from zc_perception.doctor.command import checks_of, Result, run_checks
from zc_perception.doctor.needs import needs_of
from zc_perception.errors import AllocationError
from zc_perception.machine.asking import Question, subject
from zc_perception.machine.checks import Finding, Needs
from zc_perception.machine.system import System
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.fence import EventFence
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.axl.device import axl_error, AxlCapabilities, AxlDevice
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR

#: Names everything that a vehicle may be asked for, so that every verdict is strict.
YAML: dict[str, dict[str, Any]] = {
    '/**/capture': {
        'camera': 'v4l2', 'device': '/dev/video0', 'width': 640, 'height': 360, 'framerate': 30.0,
        'memory': 'import', 'heap': 'dma_heap/linux,cma', 'slots': 8,
    },
    '/**/inference': {'accelerator': 'axl', 'model': 'road'},
}  # fmt: skip
ANSWERS: dict[str, dict[str, Any]] = {
    'gstreamer': {'version': '1.20', 'elements': {'appsink': {'there': True}}},
    'pipeline': {},
    'libcamera': {'error': "camera 'libcamera' needs libcamera's Python bindings: No module named "
                           "'libcamera'; install it: apt"},
    'voyager': {'path': '/opt/axelera/runtime-1.6/lib/libaxruntime.so', 'file': '',
                'api_version': '1.6.0', 'release': '1.6.0', 'python_binding': ''},
    'nvbufsurface': {'loaded': True, 'file': '/usr/lib/libnvbufsurface.so.1.0.0'},
    'vic': {'file': '/usr/lib/libnvbufsurftransform.so.1.0.0'},
    'ros': {'middlewares': ['rmw_fastrtps_cpp'], 'rclpy_version': '3.3.11',
            'middleware': 'rmw_fastrtps_cpp',
            'messages': {'sensor_msgs.msg': '', 'vision_msgs.msg': ''}},
    'parameters': {'problems': [], 'warnings': [], 'checked': 10},
    'recording': {'width': 640, 'height': 360},
    'model': {'name': 'road', 'manifest': 'model.yaml', 'engines': {'axl': ''}, 'classes': 4,
              'input': [640, 384], 'accelerator': 'axl', 'device': '/dev/metis-0:1:0',
              'copy_free': True, 'engine': 'axl', 'reasons': []},
}  # fmt: skip
_LIMITS = {'open files': '4096', 'locked memory': 'unlimited', 'realtime priority': '95'}
_PROFILE = (
    '<dds><transport_descriptors><segment_size>33554432</segment_size>'
    '</transport_descriptors></dds>'
)


class StandInBuffer(DmaBuf):
    fences = True
    forgets = False

    def _sync(self, flags: int) -> None:
        if self.forgets and flags & int(CpuAccess.WRITE) and flags & 4:
            self.mapping()[0] = 0xFF

    def wait_for_devices(self, access: CpuAccess, timeout_s: float) -> bool:
        return True

    def exporter(self) -> str:
        return self.heap

    def export_fence(self, access: CpuAccess) -> Any:
        if not self.fences:
            return None
        fence = EventFence()
        fence.signal()
        return fence

    def import_fence(self, fence: Any, access: CpuAccess) -> bool:
        return self.fences


class StandInHeap:
    """Counts the buffers that it gave and got back."""

    def __init__(self, vehicle: Vehicle, name: str) -> None:
        self.name = name
        self._vehicle = vehicle
        vehicle.open_things += 1

    def allocate(self, size: int) -> DmaBuf:
        if self.name in self._vehicle.empty_heaps:
            raise AllocationError(f'{self.name} could not allocate {size} bytes')
        kind = BufferKind.MEMFD if self.name == 'memfd' else BufferKind.DMABUF
        memory = OwnedFd(os.memfd_create('stand-in', os.MFD_CLOEXEC))
        os.ftruncate(memory.fileno(), -(-size // 4096) * 4096)
        buffer = StandInBuffer(memory, kind, self.name)
        buffer.fences = self._vehicle.fences
        buffer.forgets = self.name in self._vehicle.forgetful_heaps
        return buffer

    def close(self) -> None:
        self._vehicle.open_things -= 1


class StandInCard:
    def __init__(self, vehicle: Vehicle) -> None:
        self._vehicle = vehicle
        self._held: set[int] = set()
        vehicle.open_things += 1

    def query(self) -> AxlCapabilities:
        formats = ((NV12, LINEAR),) if self._vehicle.level == 2 else ()
        return AxlCapabilities(self._vehicle.level, 4, 64, 64, formats)

    def import_planes(self, layout: Any, buffers: Sequence[DmaBuf], flags: Any) -> int:
        assert self._vehicle.level == 2 and all(plane.stride % 64 == 0 for plane in layout.planes)
        if any(buffer.heap in self._vehicle.unmappable_heaps for buffer in buffers):
            raise axl_error('import_planes', errno.EOPNOTSUPP)
        assert layout.buffer_size(0) <= buffers[0].size
        self._held.add(1)
        return 1

    def import_fd(self, buffer: DmaBuf, width: int, height: int, fourcc: int, flags: Any) -> int:
        assert self._vehicle.level == 1 and width * height * 3 // 2 <= buffer.size
        self._held.add(2)
        return 2

    def release_import(self, handle: int) -> None:
        self._held.remove(handle)

    def close(self) -> None:
        assert not self._held, 'an import was not released'
        self._vehicle.open_things -= 1


class MetadataNode(DriverDouble):
    """The second node of a USB camera."""

    def _querycap(self, argument: v4l2.Capability) -> None:
        super()._querycap(argument)
        argument.device_caps = v4l2.CAP_META_CAPTURE | v4l2.CAP_STREAMING


class Vehicle:
    """
    A healthy vehicle. Change its attributes and files before :meth:`examine`.

    :param sockets: the folder of the links; short, as a socket's path is limited.
    """

    def __init__(self, root: Path, sockets: Path) -> None:
        self.root = root / 'vehicle'
        self.sockets = sockets
        self.host = Host(self.root)
        self.yaml: dict[str, dict[str, Any]] | None = copy.deepcopy(YAML)
        self.answers = copy.deepcopy(ANSWERS)
        self.environment = {
            'ROS_DISTRO': 'humble',
            'ZC_RUNTIME_DIR': str(sockets),
            'PATH': '/usr/bin',
            'FASTRTPS_DEFAULT_PROFILES_FILE': '/etc/fastdds.xml',
        }
        self.refusals: dict[str, int] = {}
        self.videos: dict[str, DriverDouble] = {'/dev/video0': DriverDouble('YUYV', 'NV12')}
        self.level = 2
        self.fences = True
        self.empty_heaps: set[str] = set()
        self.forgetful_heaps: set[str] = set()
        self.unmappable_heaps: set[str] = set()
        self.users: list[str] = []
        self.open_things = 0
        self.asked: list[tuple[str, ...]] = []
        self._fill()

    def _fill(self) -> None:
        self.write('proc/sys/kernel/osrelease', '6.8.0-vehicle')
        self.write(
            'proc/meminfo', 'MemTotal: 8000000 kB\nCmaTotal: 262144 kB\nCmaFree: 250000 kB\n'
        )
        limits = (f'Max {name:22}{value:21}{value:21}units\n' for name, value in _LIMITS.items())
        self.write('proc/self/limits', ''.join(limits))
        self.write('proc/self/status', 'Name:\tpython\nCapEff:\t0000000000000000\n')
        for name in ('dma_heap/system', 'dma_heap/linux,cma', 'udmabuf', 'video0'):
            self.write(f'dev/{name}', '')
        self.write('etc/fastdds.xml', _PROFILE)
        self.write('opt/ros/humble/setup.bash', '')
        link = {'link_speed': '8.0 GT/s PCIe', 'link_width': '4'}
        rates = {f'{which}_{name}': link[name] for which in ('current', 'max') for name in link}
        self.host.add_card(device='0x1100', **rates)
        self.pci = (self.root / 'sys/bus/pci/devices/0000:01:00.0').resolve()
        group = self.root / 'sys/kernel/iommu_groups/7'
        group.mkdir(parents=True)
        (group / 'type').write_text('DMA-FQ\n')
        (self.pci / 'iommu_group').symlink_to(group)
        self.write('sys/module/metis/version', '1.6.2')

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding='utf-8')

    def remove(self, name: str) -> None:
        (self.root / name).unlink()

    def tegra(self) -> None:
        """Simulate Linux 5.15 as of JetPack 6."""
        self.write('proc/sys/kernel/osrelease', '5.15.148-tegra')
        self.write(
            'etc/nv_tegra_release', '# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic'
        )
        self.write('proc/device-tree/model', 'NVIDIA Jetson Orin NX Engineering Reference\0')
        self.write('dev/nvmap', '')
        self.fences = False

    def _open_node(self, path: str) -> int:
        if not Path(path).is_relative_to(self.root):  # a path of the machine that runs the tests
            return errno.ENOENT
        shown = '/' + str(Path(path).relative_to(self.root))
        return self.refusals.get(shown, 0 if os.path.lexists(path) else errno.ENOENT)

    def _open_video(self, path: str) -> DriverDouble:
        shown = '/' + str(Path(path).relative_to(self.root))
        number = self.refusals.get(shown, 0 if shown in self.videos else errno.ENOENT)
        if number:
            raise OSError(number, os.strerror(number))
        driver = self.videos[shown]
        driver.closed = False
        return driver

    def _open_heap(self, name: str) -> StandInHeap:
        number = self._open_node(str(self.root / 'dev' / name)) if name != 'memfd' else 0
        if number:
            raise AllocationError(f"heap '{name}' can't be opened: {os.strerror(number)}")
        return StandInHeap(self, name)

    def _open_card(self, path: str, numbers: Mapping[str, int] | None, tree: Any) -> Any:
        number = self._open_node(path)
        if number:
            raise axl_error('open', number)
        return StandInCard(self)

    def _ask(self, question: Question, *arguments: str) -> dict[str, Any]:
        self.asked.append((subject(question), *arguments))
        return self.answers[subject(question)]

    def system(self) -> System:
        return System(
            root=self.root, environment=self.environment, machine='aarch64', user=os.geteuid(),
            open_node=self._open_node, open_heap=self._open_heap, ask=self._ask,
            users_of=lambda path: self.users,
            doubles={DeviceFile: self._open_video, AxlDevice: self._open_card},
        )  # fmt: skip

    def needs(self) -> Needs:
        """Return what the parameter file requires; nothing without a file."""
        if self.yaml is None:
            return Needs()
        return needs_of(list(self.yaml.items()), 'vehicle.yaml')

    def examine(self, *groups: str) -> list[Result]:
        """Return all findings; the checks must close what they opened."""
        results = list(run_checks(checks_of(groups), self.system(), self.needs(), 30.0))
        assert not self.open_things, 'something was left open'
        assert all(driver.closed or not driver.calls for driver in self.videos.values()), (
            'a camera was left open'
        )
        return results

    def found(self, check: str) -> dict[str, Finding]:
        """Return a check's findings by subject."""
        results = self.examine(check.partition('.')[0])
        return {each.finding.subject: each.finding for each in results if each.check.id == check}

    def verdicts(self, *groups: str) -> dict[tuple[str, str], str]:
        return {
            (result.check.id, result.finding.subject): result.finding.status.value
            for result in self.examine(*groups)
        }


IDS = [check.id for check in checks_of()]
Breakage = Callable[[Vehicle], object]
