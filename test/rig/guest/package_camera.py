"""The package's V4L2 camera against vivid, and the whole graph killed in full flight."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from zc_perception.camera.v4l2.camera import V4l2Camera
from zc_perception.errors import CameraError
from zc_perception.memory.pool import SlotState
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.constraints import BufferConstraints

from .camera_kit import next_frame
from .harness import equal, eventually
from .kernel_api import bufinfo, live, parameters
from .package_kit import MANIFEST, check, crcs, refused


def _camera(slots: int = 4, width: int = 640, height: int = 360) -> V4l2Camera:
    camera = V4l2Camera('/dev/video0', width, height, 30.0, 'cam', now_ns=time.time_ns)
    own = camera.constraints()
    camera.allocate(agree([own, BufferConstraints('slots', slots=slots - own.slots)], (camera.width, camera.height)))
    return camera


@check
def camera_frames_are_the_drivers_own_buffers_and_come_back_to_it() -> None:
    camera = _camera()
    try:
        inodes = {slot.buffers[0].identity.inode for slot in camera._pool.slots}
        equal({bufinfo()[i].exporter for i in inodes}, {'videobuf2_vmalloc'}, 'exporter')
        seen, stamps, sequences = set(), [], []
        for _ in range(12):
            with next_frame(camera) as frame:
                seen.add(frame.data.buffers[0].identity.inode)
                stamps.append(frame.header.stamp_ns)
                sequences.append(frame.data.sequence)
                assert not frame.data.buffers[0].mapped
        assert seen <= inodes and len(seen) > 1
        assert stamps == sorted(stamps) and sequences == sorted(set(sequences))
    finally:
        camera.close()
    eventually(lambda: not inodes & set(bufinfo()), 'the buffers go')


@check
def a_starved_camera_recovers_and_counts_what_it_lost() -> None:
    camera = _camera(slots=4)
    try:
        made = camera.pool_statistics().slots
        held = [next_frame(camera) for _ in range(made)]
        time.sleep(0.4)
        assert camera.capture() is None, 'there was no buffer left to fill'
        for frame in held:
            frame.release()
        next_frame(camera).release()
        assert camera.statistics().dropped >= 5, camera.statistics()
        eventually(lambda: camera.pool_statistics().states == {SlotState.FREE: made}, 'all slots are with the driver again')
    finally:
        camera.close()


@check
def a_leased_frame_outlives_its_camera() -> None:
    camera = _camera()
    frame = next_frame(camera)
    before = crcs(frame)
    camera.close()
    inode = frame.data.buffers[0].identity.inode
    equal(crcs(frame), before, 'pixels after the camera closed')
    frame.release()
    del frame
    eventually(lambda: inode not in bufinfo(), 'the buffer goes with its last lease')


@check
def what_the_camera_cannot_do_is_said() -> None:
    with refused(CameraError, '/dev/video77', 'devices found: /dev/video0'):
        V4l2Camera('/dev/video77', 0, 0, 0.0, 'cam', now_ns=time.time_ns)
    with refused(CameraError, "can't do 641x359", 'the nearest is'):
        V4l2Camera('/dev/video0', 641, 359, 0.0, 'cam', now_ns=time.time_ns)
    first = _camera()
    try:
        next_frame(first).release()
        with refused(CameraError, 'busy', 'another program uses it'):
            _camera(width=320, height=180)
    finally:
        first.close()


@check
def sigkill_of_the_whole_graph_leaves_nothing_behind() -> None:
    binary = Path(sys.executable).parent / 'perception'
    args = ['capture:camera:=v4l2', 'inference:accelerator:=axl', f'inference:model:={MANIFEST.path}']
    args += ['capture:width:=640', 'capture:height:=360', 'inference:in_flight:=4']
    before = set(bufinfo())
    with parameters(latency_us=200000):
        command = [str(binary), '--ros-args', *(word for value in args for word in ('-p', value))]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: live()['jobs'] > 0 and live()['imports'] > 2, 'jobs are in flight', 90)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    eventually(lambda: not any(live().values()), f'the device lets go: {live()}')
    eventually(lambda: set(bufinfo()) <= before, 'no dma-buf is left')
