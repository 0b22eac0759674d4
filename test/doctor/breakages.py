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

"""What can be wrong with a vehicle, and exactly what the doctor has to complain of then."""

from __future__ import annotations

import errno

from camera.v4l2_double import DriverDouble
from doctor.vehicle import Breakage, MetadataNode, Vehicle

Expected = dict[tuple[str, str], str]
CARD = 'metis-0:1:0'
CAPTURE = '/capture'


def inference(**values: object) -> Breakage:
    return lambda vehicle: vehicle.yaml['/**/inference'].update(values)  # type: ignore[index]


def capture(**values: object) -> Breakage:
    return lambda vehicle: vehicle.yaml['/**/capture'].update(values)  # type: ignore[index]


def refuse(node: str, number: int = errno.EACCES) -> Breakage:
    return lambda vehicle: vehicle.refusals.update({node: number})


def write(name: str, text: str) -> Breakage:
    return lambda vehicle: vehicle.write(name, text)


def answer(question: str, **values: object) -> Breakage:
    return lambda vehicle: vehicle.answers[question].update(values)


def runtime(release: str) -> Breakage:
    """Return a Voyager runtime whose C library is found."""
    return answer('voyager', release=release, api_version=release)


def environment(**values: str) -> Breakage:
    return lambda vehicle: vehicle.environment.update(values)


def video(*formats: str, **options: int) -> Breakage:
    return lambda vehicle: vehicle.videos.update(
        {'/dev/video0': DriverDouble(*formats, **options)}
    )


def pci(**files: str) -> Breakage:
    def change(vehicle: Vehicle) -> None:
        for name, text in files.items():
            (vehicle.pci / name).write_text(text + '\n')

    return change


def all_of(*steps: Breakage) -> Breakage:
    def change(vehicle: Vehicle) -> None:
        for step in steps:
            step(vehicle)

    return change


def no_node(vehicle: Vehicle) -> None:
    vehicle.host.tree.dev.joinpath(CARD).unlink()


def no_driver(vehicle: Vehicle) -> None:
    no_node(vehicle)
    (vehicle.pci / 'driver').unlink()


def no_card(vehicle: Vehicle) -> None:
    no_node(vehicle)
    (vehicle.root / 'sys/bus/pci/devices/0000:01:00.0').unlink()


def no_heaps(vehicle: Vehicle) -> None:
    for name in ('dma_heap/system', 'dma_heap/linux,cma', 'udmabuf'):
        vehicle.remove(f'dev/{name}')


def no_cma_heap(vehicle: Vehicle) -> None:
    vehicle.remove('dev/dma_heap/linux,cma')


def no_camera(vehicle: Vehicle) -> None:
    vehicle.remove('dev/video0')
    vehicle.videos.clear()


def busy(vehicle: Vehicle) -> None:
    driver = vehicle.videos['/dev/video0']
    driver.errors['REQBUFS'] += [errno.EBUSY] * 4


def set_(**values: object) -> Breakage:
    def change(vehicle: Vehicle) -> None:
        for name, value in values.items():
            setattr(vehicle, name, value)

    return change


HEAPS = ('dma_heap/linux,cma', 'dma_heap/system', 'udmabuf')
BROKEN: dict[str, tuple[Breakage, Expected]] = {
    'kernel of JetPack 6': (Vehicle.tegra, {('kernel.sync_file_ioctls', ''): 'warn'}),
    'kernel before dma-heaps': (
        write('proc/sys/kernel/osrelease', '5.4.0-old'),
        {('kernel.release', ''): 'fail'},
    ),
    'heap of the parameter file refused': (
        refuse('/dev/dma_heap/linux,cma'),
        {
            ('memory.heaps', HEAPS[0]): 'fail',
            ('buffers.cpu', HEAPS[0]): 'fail',
            ('buffers.fences', HEAPS[0]): 'fail',
            ('buffers.import', f'{HEAPS[0]} -> {CARD}'): 'fail',
        },
    ),
    'another heap refused': (
        refuse('/dev/dma_heap/system'),
        {
            ('memory.heaps', HEAPS[1]): 'warn',
            ('buffers.cpu', HEAPS[1]): 'warn',
            ('buffers.fences', HEAPS[1]): 'warn',
            ('buffers.import', f'{HEAPS[1]} -> {CARD}'): 'warn',
        },
    ),
    'heap of the parameter file missing': (no_cma_heap, {('memory.heaps', HEAPS[0]): 'fail'}),
    'no heap at all': (
        all_of(no_heaps, capture(heap='auto')),
        {('memory.heaps', ''): 'fail', ('buffers.import', ''): 'fail'},
    ),
    'participants with more than CMA has': (
        capture(
            camera='synthetic',
            memory='auto',
            width=1920,
            height=1080,
            participants=['recorder: NV12; stride_align=4096; slots=40'],
        ),
        {('memory.cma_pool', ''): 'fail'},
    ),
    'inference that holds more than the driver has': (
        all_of(capture(participants=['a: any; slots=26']), inference(in_flight=8)),
        {('agreement.planned', CAPTURE): 'fail'},
    ),
    'CMA smaller than the pool': (
        write('proc/meminfo', 'CmaTotal: 2048 kB\nCmaFree: 2048 kB\n'),
        {('memory.cma_pool', ''): 'fail'},
    ),
    'CMA used up': (
        write('proc/meminfo', 'CmaTotal: 262144 kB\nCmaFree: 2000 kB\n'),
        {('memory.cma_pool', ''): 'fail'},
    ),
    'no CMA': (write('proc/meminfo', 'MemTotal: 8000 kB\n'), {('memory.cma_pool', ''): 'fail'}),
    'heap without memory': (
        set_(empty_heaps={HEAPS[0]}),
        {
            ('buffers.cpu', HEAPS[0]): 'fail',
            ('buffers.fences', HEAPS[0]): 'fail',
            ('buffers.import', f'{HEAPS[0]} -> {CARD}'): 'fail',
        },
    ),
    'heap whose buffers are not coherent': (
        set_(forgetful_heaps={HEAPS[0]}),
        {('buffers.cpu', HEAPS[0]): 'fail'},
    ),
    'heap that the card cannot map': (
        set_(unmappable_heaps={HEAPS[0]}),
        {('buffers.import', f'{HEAPS[0]} -> {CARD}'): 'fail'},
    ),
    'scattered heap that the card cannot map': (
        set_(unmappable_heaps={HEAPS[1]}),
        {('buffers.import', f'{HEAPS[1]} -> {CARD}'): 'warn'},
    ),
    'no camera': (
        no_camera,
        {('cameras.devices', ''): 'fail', ('cameras.configured', CAPTURE): 'fail'},
    ),
    'camera refused': (
        refuse('/dev/video0'),
        {('cameras.devices', '/dev/video0'): 'fail', ('cameras.configured', CAPTURE): 'fail'},
    ),
    'camera in use': (
        busy,
        {('cameras.devices', '/dev/video0'): 'fail', ('cameras.configured', CAPTURE): 'fail'},
    ),
    'camera without NV12': (
        video('YUYV'),
        {('cameras.configured', CAPTURE): 'fail', ('agreement.planned', CAPTURE): 'warn'},
    ),
    'camera without NV12, which nobody needs': (
        all_of(video('YUYV'), inference(accelerator='onnx')),
        {('cameras.configured', CAPTURE): 'warn'},
    ),
    'camera without the format': (
        capture(pixel_format='UYVY'),
        {('cameras.configured', CAPTURE): 'fail'},
    ),
    'camera without the size': (
        capture(width=1280, height=720),
        {('cameras.configured', CAPTURE): 'fail'},
    ),
    'camera without the rate': (
        capture(framerate=120.0),
        {('cameras.configured', CAPTURE): 'fail'},
    ),
    'camera that takes no buffers': (
        video('NV12', memory=1),
        {('cameras.configured', CAPTURE): 'fail'},
    ),
    'camera that is a metadata node': (
        lambda v: v.videos.update({'/dev/video0': MetadataNode()}),
        {('cameras.configured', CAPTURE): 'fail'},
    ),
    'another camera in use': (
        all_of(
            write('dev/video4', ''),
            lambda v: v.videos.update({'/dev/video4': DriverDouble()}),
            lambda v: v.videos['/dev/video4'].fail('REQBUFS', errno.EBUSY),
        ),
        {},
    ),
    'camera of no known kind': (
        capture(camera='webcam'),
        {('cameras.configured', CAPTURE): 'fail'},
    ),
    'heap of no known kind': (capture(heap='cma'), {('memory.heaps', 'cma'): 'fail'}),
    'NVMM frames on a board without a pool': (
        all_of(
            Vehicle.tegra,
            capture(camera='argus'),
            write('proc/meminfo', 'CmaTotal: 2048 kB\nCmaFree: 2048 kB\n'),
            answer(
                'gstreamer', elements={n: {'there': True} for n in ('appsink', 'nvarguscamerasrc')}
            ),
        ),
        {('memory.cma_pool', ''): 'warn', ('kernel.sync_file_ioctls', ''): 'warn'},
    ),
    "driver's own buffers and a small pool": (
        all_of(
            capture(memory='export'),
            write('proc/meminfo', ('CmaTotal: 2048 kB\nCmaFree: 2048 kB\n')),
        ),
        {('memory.cma_pool', ''): 'warn'},
    ),
    'camera whose size nobody knows': (
        all_of(capture(camera='gstreamer', pipeline='videotestsrc', width=0)),
        {('memory.cma_pool', ''): 'warn'},
    ),
    'no card': (no_card, {('metis.cards', ''): 'fail', ('buffers.import', ''): 'fail'}),
    'card without driver': (
        no_driver,
        {('metis.cards', ''): 'fail', ('buffers.import', ''): 'fail'},
    ),
    'card without node': (no_node, {('metis.cards', ''): 'fail', ('buffers.import', ''): 'fail'}),
    'card that is not the one named': (
        inference(accelerator_device='metis-0:9:0'),
        {('metis.cards', 'metis-0:9:0'): 'fail'},
    ),
    'card refused': (
        refuse(f'/dev/{CARD}'),
        {
            ('metis.access', CARD): 'fail',
            ('metis.ioctls', CARD): 'fail',
            ('buffers.import', CARD): 'fail',
        },
    ),
    'shipped driver': (
        set_(level=0),
        {
            ('metis.ioctls', CARD): 'fail',
            **{('buffers.import', f'{heap} -> {CARD}'): 'fail' for heap in HEAPS},
        },
    ),
    'driver of the first generation': (set_(level=1), {('metis.ioctls', CARD): 'warn'}),
    'link with one lane': (pci(current_link_width='1'), {('metis.link', CARD): 'fail'}),
    'slow link of a slow slot': (
        pci(current_link_speed='2.5 GT/s PCIe'),
        {('metis.link', CARD): 'fail'},
    ),
    'link that is not shown': (
        lambda v: (v.pci / 'current_link_width').unlink(),
        {('metis.link', CARD): 'warn'},
    ),
    'no IOMMU': (lambda v: (v.pci / 'iommu_group').unlink(), {('metis.iommu', CARD): 'warn'}),
    'IOMMU that passes through': (
        write('sys/kernel/iommu_groups/7/type', 'identity'),
        {('metis.iommu', CARD): 'warn'},
    ),
    'runtime missing': (
        all_of(
            inference(accelerator='axruntime'),
            answer('voyager', error='needs libaxruntime.so: not there; install it'),
        ),
        {
            ('voyager.runtime', ''): 'fail',
            ('voyager.toolchain', ''): 'fail',
            ('metis.attach', CARD): 'fail',
        },
    ),
    'driver too old for the runtime, and no tools': (
        all_of(
            inference(accelerator='axruntime'),
            write('sys/class/metis/version', '1.5.7'),
            runtime('1.8.0'),
            lambda v: v.environment.update(PATH='/nowhere'),
        ),
        {
            ('voyager.runtime', 'driver'): 'fail',
            ('voyager.runtime', 'lspci'): 'warn',
            ('voyager.runtime', 'lsmod'): 'warn',
            ('metis.attach', CARD): 'fail',
        },
    ),
    'argus without a Jetson': (
        capture(camera='argus'),
        {('jetson.release', ''): 'fail', ('gstreamer.elements', 'nvarguscamerasrc'): 'fail'},
    ),
    'argus whose library is another': (
        all_of(
            Vehicle.tegra,
            capture(camera='argus'),
            answer('nvbufsurface', error='its structs are others'),
            answer(
                'gstreamer', elements={n: {'there': True} for n in ('appsink', 'nvarguscamerasrc')}
            ),
        ),
        {('jetson.nvbufsurface', ''): 'fail', ('kernel.sync_file_ioctls', ''): 'warn'},
    ),
    'no GStreamer for a pipeline': (
        all_of(
            capture(camera='gstreamer', pipeline='videotestsrc'),
            answer('gstreamer', error='it needs GStreamer: x; install it'),
            answer('pipeline', error='no GStreamer'),
        ),
        {('gstreamer.library', ''): 'fail', ('gstreamer.pipeline', CAPTURE): 'fail'},
    ),
    'empty pipeline': (capture(camera='gstreamer'), {('gstreamer.pipeline', CAPTURE): 'fail'}),
    'no libcamera': (capture(camera='libcamera'), {('libcamera.bindings', ''): 'fail'}),
    'libcamera without that camera': (
        all_of(
            capture(camera='libcamera', libcamera_id='imx477'),
            lambda v: v.answers.update(
                libcamera={'file': '', 'version': '0.3', 'cameras': ['imx219']}
            ),
        ),
        {('libcamera.bindings', CAPTURE): 'fail'},
    ),
    'calibration of a package that is not there': (
        capture(camera_info_url='package://vehicle/front.yaml'),
        {('cameras.calibration', CAPTURE): 'fail'},
    ),
    'calibration that is none': (
        all_of(
            write('opt/front.yaml', 'image_width: wide'),
            capture(camera_info_url='file:///opt/front.yaml'),
        ),
        {('cameras.calibration', CAPTURE): 'fail'},
    ),
    'recording that is given later': (
        capture(camera='replay'),
        {('cameras.configured', CAPTURE): 'warn'},
    ),
    'size of the pool that can not be read': (
        lambda v: v.remove('proc/meminfo'),
        {('memory.cma_pool', ''): 'warn'},
    ),
    'file with nothing for us': (
        answer('parameters', checked=0),
        {('parameters.file', ''): 'warn'},
    ),
    'middleware that is not installed': (
        all_of(
            answer('ros', missing='rmw_cyclonedds_cpp', middleware=''),
            environment(RMW_IMPLEMENTATION='rmw_cyclonedds_cpp'),
        ),
        {('ros.middleware', ''): 'fail'},  # what needs it is left out
    ),
    'file that cannot be checked whole': (
        answer('parameters', error='no rclpy'),
        {('parameters.file', ''): 'warn'},
    ),
    'unknown model': (
        lambda v: v.answers.update(model={'error': "model 'x' is not known", 'stage': 'manifest'}),
        {('model.manifest', '/inference'): 'fail'},
    ),
    'model that does not load': (
        answer('model', error='it does not fit; use onnx', stage='accelerator'),
        {('model.load', '/inference'): 'fail'},
    ),
    'no ROS': (
        all_of(
            environment(ROS_DISTRO=''),
            lambda v: v.remove('opt/ros/humble/setup.bash'),
            lambda v: (v.root / 'opt/ros/humble').rmdir(),
            lambda v: v.answers.update(
                ros={
                    'middlewares': [],
                    'rclpy_version': '',
                    'error': 'ModuleNotFoundError',
                    'messages': {},
                }
            ),
        ),
        {('ros.distribution', ''): 'fail', ('ros.rclpy', ''): 'fail'},
    ),
    'ROS that was not sourced': (environment(ROS_DISTRO=''), {('ros.distribution', ''): 'warn'}),
    'ROS of another time': (environment(ROS_DISTRO='foxy'), {('ros.distribution', ''): 'warn'}),
    'no vision_msgs': (
        answer('ros', messages={'vision_msgs.msg': 'ModuleNotFoundError'}),
        {('ros.messages', ''): 'fail'},
    ),
    'no Fast DDS profile': (
        environment(FASTRTPS_DEFAULT_PROFILES_FILE=''),
        {('ros.large_messages', ''): 'warn'},
    ),
    'Fast DDS profile missing': (
        lambda v: v.remove('etc/fastdds.xml'),
        {('ros.large_messages', ''): 'fail'},
    ),
    'Fast DDS profile with too small a segment': (
        write('etc/fastdds.xml', '<dds><segment_size>524288</segment_size></dds>'),
        {('ros.large_messages', ''): 'warn'},
    ),
    'Cyclone DDS with a small buffer': (
        all_of(
            answer('ros', middleware='rmw_cyclonedds_cpp'),
            write('proc/sys/net/core/rmem_max', '212992'),
        ),
        {('ros.large_messages', ''): 'warn'},
    ),
    'sockets where no folder can be': (
        environment(ZC_RUNTIME_DIR='/proc/zc'),
        {('link.runtime_folder', ''): 'fail'},
    ),
    'runtime folder that is not there': (
        environment(ZC_RUNTIME_DIR='', XDG_RUNTIME_DIR='/proc/nowhere'),
        {('link.runtime_folder', ''): 'warn'},
    ),
    'group that is not there': (
        capture(shared_memory_group='no_such_group'),
        {('link.runtime_folder', 'no_such_group'): 'fail'},
    ),
    'priority that is not allowed': (
        capture(realtime_priority=96),
        {('limits.realtime', ''): 'fail'},
    ),
    'priority that is allowed': (inference(realtime_priority=95), {}),
    'memory that may not be locked': (
        all_of(
            capture(lock_memory=True),
            write(
                'proc/self/limits',
                ('Max locked memory         65536                65536   bytes\n'),
            ),
        ),
        {('limits.locked_memory', ''): 'fail'},
    ),
    'too few descriptors': (
        write(
            'proc/self/limits',
            ('Max open files            100                  150                  files\n'),
        ),
        {('limits.descriptors', ''): 'fail'},
    ),
}
