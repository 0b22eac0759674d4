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
A simulated vehicle in a folder, with attributes that break it, and faults of it.

Its files are those of a healthy kernel, written after the kernel's documents. Buffers are memfds
that pass as dma-bufs, the camera is the tests' V4L2 driver, and a table holds the answers of other
processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import copy
import errno
from functools import partial
import os
from pathlib import Path
from typing import Any

from camera.v4l2_double import DriverDouble
from npu.card_kit import CountingCard, Host, LINEAR_ONLY

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
from zc_perception.npu.axl.device import axl_error, AxlDevice

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


class StandInCard(CountingCard):
    def __init__(self, vehicle: Vehicle) -> None:
        super().__init__(vehicle.level, formats=LINEAR_ONLY if vehicle.level == 2 else ())
        self._vehicle = vehicle
        vehicle.open_things += 1

    def import_planes(self, layout: Any, buffers: Sequence[DmaBuf], flags: Any) -> int:
        assert self._vehicle.level == 2 and all(plane.stride % 64 == 0 for plane in layout.planes)
        if any(buffer.heap in self._vehicle.unmappable_heaps for buffer in buffers):
            raise axl_error('import_planes', errno.EOPNOTSUPP)
        assert layout.buffer_size(0) <= buffers[0].size
        return super().import_fd()

    def import_fd(self, buffer: DmaBuf, width: int, height: int, fourcc: int, flags: Any) -> int:
        assert self._vehicle.level == 1 and width * height * 3 // 2 <= buffer.size
        return super().import_fd()

    def close(self) -> None:
        assert not self.held, 'an import was not released'
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
        results = self.examine(check.partition('.')[0])
        return {each.finding.subject: each.finding for each in results if each.check.id == check}

    def verdicts(self, *groups: str) -> dict[tuple[str, str], str]:
        return {
            (result.check.id, result.finding.subject): result.finding.status.value
            for result in self.examine(*groups)
        }


IDS = [check.id for check in checks_of()]
Breakage = Callable[[Vehicle], object]


# Faults of a vehicle, and the exact complaints that the doctor must make for each.


Expected = dict[tuple[str, str], str]
CARD = 'metis-0:1:0'


def inference(**values: object) -> Breakage:
    return lambda vehicle: vehicle.yaml['/**/inference'].update(values)  # type: ignore[index]


def capture(**values: object) -> Breakage:
    return lambda vehicle: vehicle.yaml['/**/capture'].update(values)  # type: ignore[index]


def refuse(node: str) -> Breakage:
    return lambda vehicle: vehicle.refusals.update({node: errno.EACCES})


def write(name: str, text: str) -> Breakage:
    return lambda vehicle: vehicle.write(name, text)


def without(*names: str) -> Breakage:
    return lambda vehicle: [vehicle.remove(name) for name in names]


def answer(question: str, **values: object) -> Breakage:
    return lambda vehicle: vehicle.answers[question].update(values)


def answers(**values: dict[str, Any]) -> Breakage:
    return lambda vehicle: vehicle.answers.update(values)


def environment(**values: str) -> Breakage:
    return lambda vehicle: vehicle.environment.update(values)


def video(driver: DriverDouble, path: str = '/dev/video0') -> Breakage:
    return lambda vehicle: vehicle.videos.update({path: driver})


def set_(**values: object) -> Breakage:
    return lambda vehicle: vars(vehicle).update(values)


def all_of(*steps: Breakage) -> Breakage:
    return lambda vehicle: [step(vehicle) for step in steps]


def busy(vehicle: Vehicle) -> None:
    vehicle.videos['/dev/video0'].errors['REQBUFS'] += [errno.EBUSY] * 4


def complaints_of(status: str, *where: str) -> Expected:
    """Return expected complaints; each text is a check, or a check, a blank and its subject."""
    parts = (one.partition(' ') for one in where)
    return {(check, subject): status for check, _, subject in parts}


fails, warns = partial(complaints_of, 'fail'), partial(complaints_of, 'warn')


def at(heap: str, *checks: str) -> list[str]:
    """Return these checks of a heap; an import is into the card."""
    return [f'{check} {heap}{f" -> {CARD}" * (check == IMPORT)}' for check in checks]


IMPORT, PCI = 'buffers.import', 'sys/bus/pci/devices/0000:01:00.0'
OF_A_HEAP = ('memory.heaps', 'buffers.cpu', 'buffers.fences', IMPORT)
NO_CARD = without(f'dev/{CARD}', PCI)
NO_NODE, NO_DRIVER = without(f'dev/{CARD}'), without(f'dev/{CARD}', f'{PCI}/driver')
SMALL_CMA = write('proc/meminfo', 'CmaTotal: 2048 kB\nCmaFree: 2048 kB\n')
WITH_ARGUS = answer(
    'gstreamer', elements={n: {'there': True} for n in ('appsink', 'nvarguscamerasrc')}
)
CMA_HEAP, SYSTEM_HEAP = 'dma_heap/linux,cma', 'dma_heap/system'
HEAPS = (CMA_HEAP, SYSTEM_HEAP, 'udmabuf')
NO_ROS: dict[str, Any] = {
    'middlewares': [],
    'rclpy_version': '',
    'error': 'no rclpy',
    'messages': {},
}
BROKEN: dict[str, tuple[Breakage, Expected]] = {
    'kernel of JetPack 6': (Vehicle.tegra, warns('kernel.sync_file_ioctls')),
    'kernel before dma-heaps': (
        write('proc/sys/kernel/osrelease', '5.4.0-old'),
        fails('kernel.release'),
    ),
    'heap of the parameter file refused': (
        refuse(f'/dev/{CMA_HEAP}'),
        fails(*at(CMA_HEAP, *OF_A_HEAP)),
    ),
    'another heap refused': (refuse(f'/dev/{SYSTEM_HEAP}'), warns(*at(SYSTEM_HEAP, *OF_A_HEAP))),
    'heap of the parameter file missing': (
        without(f'dev/{CMA_HEAP}'),
        fails(f'memory.heaps {CMA_HEAP}'),
    ),
    'no heap at all': (
        all_of(without(*(f'dev/{heap}' for heap in HEAPS)), capture(heap='auto')),
        fails('memory.heaps', IMPORT),
    ),
    'inference that holds more than the driver has': (
        all_of(capture(participants=['a: any; slots=26']), inference(in_flight=8)),
        fails('agreement.planned /capture'),
    ),
    'model that looks beside the frames': (
        inference(accelerator='onnx', roi='1280,0,960,720'),
        fails('agreement.planned /capture'),
    ),
    'CMA smaller than the pool': (SMALL_CMA, fails('memory.cma_pool')),
    'CMA used up': (
        write('proc/meminfo', 'CmaTotal: 262144 kB\nCmaFree: 2000 kB\n'),
        fails('memory.cma_pool'),
    ),
    'no CMA': (write('proc/meminfo', 'MemTotal: 8000 kB\n'), fails('memory.cma_pool')),
    'heap without memory': (
        set_(empty_heaps={CMA_HEAP}),
        fails(*at(CMA_HEAP, 'buffers.cpu', 'buffers.fences', IMPORT)),
    ),
    'heap whose buffers are not coherent': (
        set_(forgetful_heaps={CMA_HEAP}),
        fails('buffers.cpu dma_heap/linux,cma'),
    ),
    'heap that the card cannot map': (
        set_(unmappable_heaps={CMA_HEAP}),
        fails(*at(CMA_HEAP, IMPORT)),
    ),
    'scattered heap that the card cannot map': (
        set_(unmappable_heaps={SYSTEM_HEAP}),
        warns(*at(SYSTEM_HEAP, IMPORT)),
    ),
    'no camera': (
        all_of(without('dev/video0'), lambda v: v.videos.clear()),
        fails('cameras.devices', 'cameras.configured /capture'),
    ),
    'camera refused': (
        refuse('/dev/video0'),
        fails('cameras.devices /dev/video0', 'cameras.configured /capture'),
    ),
    'camera in use': (busy, fails('cameras.devices /dev/video0', 'cameras.configured /capture')),
    'camera without NV12': (
        video(DriverDouble('YUYV')),
        fails('cameras.configured /capture') | warns('agreement.planned /capture'),
    ),
    'camera without NV12, which nobody needs': (
        all_of(video(DriverDouble('YUYV')), inference(accelerator='onnx')),
        warns('cameras.configured /capture'),
    ),
    'camera without the format': (
        capture(pixel_format='UYVY'),
        fails('cameras.configured /capture'),
    ),
    'camera without the size': (
        capture(width=1280, height=720),
        fails('cameras.configured /capture'),
    ),
    'camera without the rate': (capture(framerate=120.0), fails('cameras.configured /capture')),
    'camera that takes no buffers': (
        video(DriverDouble('NV12', memory=1)),
        fails('cameras.configured /capture'),
    ),
    'camera that is a metadata node': (
        video(MetadataNode()),
        fails('cameras.configured /capture'),
    ),
    'another camera in use': (
        all_of(
            write('dev/video4', ''),
            video(DriverDouble(), '/dev/video4'),
            lambda v: v.videos['/dev/video4'].fail('REQBUFS', errno.EBUSY),
        ),
        {},
    ),
    'camera of no known kind': (capture(camera='webcam'), fails('cameras.configured /capture')),
    'heap of no known kind': (capture(heap='cma'), fails('memory.heaps cma')),
    'NVMM frames on a board without a pool': (
        all_of(Vehicle.tegra, capture(camera='argus'), SMALL_CMA, WITH_ARGUS),
        warns('memory.cma_pool', 'kernel.sync_file_ioctls'),
    ),
    "driver's own buffers and a small pool": (
        all_of(capture(memory='export'), SMALL_CMA),
        warns('memory.cma_pool'),
    ),
    "driver's own buffers and a consumer of others": (
        capture(memory='export', participants=['a: NV12; heap=dma_heap/system']),
        fails('agreement.planned /capture'),
    ),
    'camera whose size nobody knows': (
        capture(camera='gstreamer', pipeline='videotestsrc', width=0),
        warns('memory.cma_pool'),
    ),
    'no card': (NO_CARD, fails('metis.cards', IMPORT)),
    'card without driver': (NO_DRIVER, fails('metis.cards', IMPORT)),
    'card without node': (NO_NODE, fails('metis.cards', IMPORT)),
    'card that is not the one named': (
        inference(accelerator_device='metis-0:9:0'),
        fails('metis.cards metis-0:9:0'),
    ),
    'card refused': (
        refuse(f'/dev/{CARD}'),
        fails(
            'metis.access metis-0:1:0', 'metis.ioctls metis-0:1:0', 'buffers.import metis-0:1:0'
        ),
    ),
    'shipped driver': (
        set_(level=0),
        fails(f'metis.ioctls {CARD}', *(f'{IMPORT} {heap} -> {CARD}' for heap in HEAPS)),
    ),
    'driver of the first generation': (set_(level=1), warns('metis.ioctls metis-0:1:0')),
    'link with one lane': (
        write(f'{PCI}/current_link_width', '1\n'),
        fails('metis.link metis-0:1:0'),
    ),
    'slow link of a slow slot': (
        write(f'{PCI}/current_link_speed', '2.5 GT/s PCIe\n'),
        fails('metis.link metis-0:1:0'),
    ),
    'link that is not shown': (
        without(f'{PCI}/current_link_width'),
        warns('metis.link metis-0:1:0'),
    ),
    'no IOMMU': (without(f'{PCI}/iommu_group'), warns('metis.iommu metis-0:1:0')),
    'IOMMU that passes through': (
        write('sys/kernel/iommu_groups/7/type', 'identity'),
        warns('metis.iommu metis-0:1:0'),
    ),
    'runtime missing': (
        all_of(
            inference(accelerator='axruntime'),
            answer('voyager', error='needs libaxruntime.so: not there; install it'),
        ),
        fails('voyager.runtime', 'voyager.toolchain', 'metis.attach metis-0:1:0'),
    ),
    'driver too old for the runtime, and no tools': (
        all_of(
            inference(accelerator='axruntime'),
            write('sys/class/metis/version', '1.5.7'),
            answer('voyager', release='1.8.0', api_version='1.8.0'),
            environment(PATH='/nowhere'),
        ),
        fails('voyager.runtime driver', 'metis.attach metis-0:1:0')
        | warns('voyager.runtime lspci', 'voyager.runtime lsmod'),
    ),
    'argus without a Jetson': (
        capture(camera='argus'),
        fails('jetson.release', 'gstreamer.elements nvarguscamerasrc'),
    ),
    'argus whose library is another': (
        all_of(
            Vehicle.tegra,
            capture(camera='argus'),
            answer('nvbufsurface', error='its structs are others'),
            WITH_ARGUS,
        ),
        fails('jetson.nvbufsurface') | warns('kernel.sync_file_ioctls'),
    ),
    'no GStreamer for a pipeline': (
        all_of(
            capture(camera='gstreamer', pipeline='videotestsrc'),
            answer('gstreamer', error='it needs GStreamer: x; install it'),
            answer('pipeline', error='no GStreamer'),
        ),
        fails('gstreamer.library', 'gstreamer.pipeline /capture'),
    ),
    'empty pipeline': (capture(camera='gstreamer'), fails('gstreamer.pipeline /capture')),
    'no libcamera': (capture(camera='libcamera'), fails('libcamera.bindings')),
    'libcamera without that camera': (
        all_of(
            capture(camera='libcamera', libcamera_id='imx477'),
            answers(libcamera={'file': '', 'version': '0.3', 'cameras': ['imx219']}),
        ),
        fails('libcamera.bindings /capture'),
    ),
    'calibration of a package that is not there': (
        capture(camera_info_url='package://vehicle/front.yaml'),
        fails('cameras.calibration /capture'),
    ),
    'calibration that is none': (
        all_of(
            write('opt/front.yaml', 'image_width: wide'),
            capture(camera_info_url='file:///opt/front.yaml'),
        ),
        fails('cameras.calibration /capture'),
    ),
    'recording that is given later': (
        capture(camera='replay'),
        warns('cameras.configured /capture'),
    ),
    'size of the pool that can not be read': (without('proc/meminfo'), warns('memory.cma_pool')),
    'file with nothing for us': (answer('parameters', checked=0), warns('parameters.file')),
    'middleware that is not installed': (
        all_of(
            answer('ros', missing='rmw_cyclonedds_cpp', middleware=''),
            environment(RMW_IMPLEMENTATION='rmw_cyclonedds_cpp'),
        ),
        fails('ros.middleware'),
    ),
    'file that cannot be checked whole': (
        answer('parameters', error='no rclpy'),
        warns('parameters.file'),
    ),
    'unknown model': (
        answers(model={'error': "model 'x' is not known", 'stage': 'manifest'}),
        fails('model.manifest /inference'),
    ),
    'model that does not load': (
        answer('model', error='it does not fit; use onnx', stage='accelerator'),
        fails('model.load /inference'),
    ),
    'no ROS': (
        all_of(
            environment(ROS_DISTRO=''),
            without('opt/ros/humble/setup.bash'),
            lambda v: (v.root / 'opt/ros/humble').rmdir(),
            answers(ros=NO_ROS),
        ),
        fails('ros.distribution', 'ros.rclpy'),
    ),
    'ROS that was not sourced': (environment(ROS_DISTRO=''), warns('ros.distribution')),
    'ROS of another time': (environment(ROS_DISTRO='foxy'), warns('ros.distribution')),
    'no vision_msgs': (
        answer('ros', messages={'vision_msgs.msg': 'ModuleNotFoundError'}),
        fails('ros.messages'),
    ),
    'no Fast DDS profile': (
        environment(FASTRTPS_DEFAULT_PROFILES_FILE=''),
        warns('ros.large_messages'),
    ),
    'Fast DDS profile missing': (without('etc/fastdds.xml'), fails('ros.large_messages')),
    'Fast DDS profile with too small a segment': (
        write('etc/fastdds.xml', '<dds><segment_size>524288</segment_size></dds>'),
        warns('ros.large_messages'),
    ),
    'Cyclone DDS with a small buffer': (
        all_of(
            answer('ros', middleware='rmw_cyclonedds_cpp'),
            write('proc/sys/net/core/rmem_max', '212992'),
        ),
        warns('ros.large_messages'),
    ),
    'sockets where no folder can be': (
        environment(ZC_RUNTIME_DIR='/proc/zc'),
        fails('link.runtime_folder'),
    ),
    'runtime folder that is not there': (
        environment(ZC_RUNTIME_DIR='', XDG_RUNTIME_DIR='/proc/nowhere'),
        warns('link.runtime_folder'),
    ),
    'group that is not there': (
        capture(shared_memory_group='no_such_group'),
        fails('link.runtime_folder no_such_group'),
    ),
    'priority that is not allowed': (capture(realtime_priority=96), fails('limits.realtime')),
    'priority that is allowed': (inference(realtime_priority=95), {}),
    'memory that may not be locked': (
        all_of(
            capture(lock_memory=True),
            write(
                'proc/self/limits',
                ('Max locked memory         65536                65536   bytes\n'),
            ),
        ),
        fails('limits.locked_memory'),
    ),
    'too few descriptors': (
        write(
            'proc/self/limits',
            ('Max open files            100                  150                  files\n'),
        ),
        fails('limits.descriptors'),
    ),
}
