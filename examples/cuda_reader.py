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
Convert each NV12 frame to a network's input on an NVIDIA GPU, which reads the camera's memory.

    python3 cuda_reader.py            print the mean of each frame's tensor, until Ctrl-C
    python3 cuda_reader.py --check N  compare N frames with copies of them, and time both ways

The GPU reads each frame over PCIe directly from the camera's buffer; the CPU copies nothing. This
needs an NVIDIA driver, and CuPy for the driver's version of CUDA (cupy-cuda12x or cupy-cuda13x).
"""

import argparse
from contextlib import closing, suppress
import mmap
from pathlib import Path
from statistics import median
import time

import numpy as np
import rclpy

from zc_perception import FrameReader

try:
    import cupy
    from cupy.cuda import MemoryPointer, runtime, UnownedMemory
except ImportError as error:
    raise SystemExit(
        f"cuda_reader needs CuPy ({error}): 'pip install cupy-cuda12x', or -cuda13x for CUDA 13"
    ) from None

SIDE = 640  # of the network's input, in pixels
MAPPED, READ_ONLY = 2, 8  # flags of cudaHostRegister()
KR_KB = {'bt601': (0.299, 0.114), 'bt709': (0.2126, 0.0722), 'bt2020': (0.2627, 0.0593)}


class Registered:
    """A camera's buffer that the GPU reads in place, by a mapping registered with CUDA."""

    def __init__(self, buffer):
        """Map *buffer* and register the mapping, which stays valid after the frame's release."""
        self.bytes, self.unregistered = (
            np.frombuffer(mmap.mmap(buffer.fileno(), buffer.size, prot=mmap.PROT_READ), np.uint8)
            for _ in range(2)
        )
        address = self.bytes.ctypes.data
        runtime.hostRegister(address, buffer.size, MAPPED | READ_ONLY)
        on_gpu = runtime.pointerGetAttributes(address).devicePointer
        memory = MemoryPointer(UnownedMemory(on_gpu, buffer.size, self), 0)
        self.on_gpu = cupy.ndarray(buffer.size, cupy.uint8, memory)


class Buffers:
    """The camera's few buffers; each is registered once, with the first frame that uses it."""

    def __init__(self):
        """Begin without buffers."""
        self._registered = {}

    def of(self, frame):
        """Return the registered buffers of *frame*."""
        for buffer in frame.data.buffers:
            if buffer.identity not in self._registered:
                try:
                    self._registered[buffer.identity] = Registered(buffer)
                except runtime.CUDARuntimeError as error:
                    raise SystemExit(
                        f'cuda_reader: the GPU cannot read this {buffer.kind.value} in place: '
                        f"{error}. Start the camera with the parameter 'heap: memfd'"
                    ) from None
        return [self._registered[buffer.identity] for buffer in frame.data.buffers]

    def close(self):
        """Unregister all buffers."""
        for buffer in self._registered.values():
            runtime.hostUnregister(buffer.bytes.ctypes.data)


class TensorMaker:
    """Makes the tensors of all frames that have the size, planes and colours of *frame*."""

    def __init__(self, frame):
        """Compute the picture's place in the tensor, and the factors from YUV to RGB."""
        if frame.encoding != 'nv12' or frame.modifier:
            raise SystemExit(f'cuda_reader takes linear nv12; the camera sends {frame}')
        self.layout = frame.data.layout
        scale = min(SIDE / frame.width, SIDE / frame.height)
        width, height = round(frame.width * scale), round(frame.height * scale)
        left, top = (SIDE - width) // 2, (SIDE - height) // 2
        strides = (plane.stride for plane in frame.data.planes)
        self._before = [np.int32(n) for n in (*strides, frame.width, frame.height)]
        self._after = [np.int32(n) for n in (SIDE, left, top, width, height)]
        meaning = frame.data.colorimetry
        kr, kb = KR_KB[meaning.matrix.value]
        limited = meaning.range.value == 'limited'
        gain, swing = (255 / 219, 255 / 224) if limited else (1, 1)
        red, blue = 2 * (1 - kr) * swing, 2 * (1 - kb) * swing
        greens = -blue * kb / (1 - kr - kb), -red * kr / (1 - kr - kb)
        self._colour = cupy.array([16 * limited, gain, red, *greens, blue], cupy.float32)
        source = Path(__file__).with_name('nv12_to_tensor.cu').read_text(encoding='utf-8')
        self._kernel = cupy.RawKernel(source, 'nv12_to_tensor')

    def fill(self, tensor, memories):
        """Fill *tensor* from *memories*, one per buffer of the frame, and wait for the GPU."""
        planes = (memories[plane.buffer][plane.offset :] for plane in self.layout.planes)
        arguments = (*planes, *self._before, tensor, *self._after, self._colour)
        self._kernel((SIDE // 32, SIDE // 8), (32, 8), arguments)
        cupy.cuda.get_current_stream().synchronize()


class Comparison:
    """Makes each tensor in three ways, in changing order, and measures the time of each."""

    def __init__(self):
        """Begin without a frame."""
        self.took = {'read in place': [], 'copied by DMA': [], 'copied by the driver': []}
        self._expected = cupy.empty((1, 3, SIDE, SIDE), cupy.float32)
        self._copies = []

    def check(self, maker, tensor, buffers):
        """Compare the three tensors of a frame, and the bytes that CPU and GPU read."""
        if [copy.size for copy in self._copies] != [buffer.bytes.size for buffer in buffers]:
            self._copies = [cupy.empty(buffer.bytes.size, cupy.uint8) for buffer in buffers]
        ways, tensors = list(self.took), {}
        first = len(self.took['read in place']) % 3
        for way in ways[first:] + ways[:first]:
            began = time.perf_counter()
            if way == 'read in place':
                maker.fill(tensor, [buffer.on_gpu for buffer in buffers])
            else:
                for copy, buffer in zip(self._copies, buffers, strict=True):
                    copy.set(buffer.bytes if way == 'copied by DMA' else buffer.unregistered)
                maker.fill(self._expected, self._copies)
            self.took[way].append((time.perf_counter() - began) * 1e6)
            if way != 'read in place':
                tensors[way] = self._expected.get().tobytes()
        assert set(tensors.values()) == {tensor.get().tobytes()}, 'the tensors differ'
        for buffer in buffers:
            assert buffer.on_gpu.get().tobytes() == buffer.bytes.tobytes(), 'the bytes differ'


def main():
    """Read frames and make a tensor of each; with ``--check``, compare it with a copy's tensor."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument('--check', type=int, default=0, metavar='N', help='compare N frames')
    to_check = parser.parse_args().check
    try:
        gpu = runtime.getDeviceProperties(0)['name'].decode()
    except runtime.CUDARuntimeError as error:
        raise SystemExit(f'cuda_reader found no GPU that CUDA can use: {error}') from None
    tensor = cupy.empty((1, 3, SIDE, SIDE), cupy.float32)
    maker, comparison = None, Comparison()
    rclpy.init()
    node = rclpy.create_node('cuda_reader')
    with (
        closing(Buffers()) as buffers,
        suppress(KeyboardInterrupt),
        FrameReader(node, 'image_raw', copy_free='required') as frames,
    ):
        for number, frame in enumerate(frames, 1):
            if maker is None or maker.layout != frame.data.layout:
                maker = TensorMaker(frame)
            with frame.map():  # waits until the camera has written the frame
                registered = buffers.of(frame)
                if to_check:
                    comparison.check(maker, tensor, registered)
                else:
                    maker.fill(tensor, [buffer.on_gpu for buffer in registered])
                    print(f'frame {frame.sequence}: mean {float(tensor.mean()):.4f}', flush=True)
            if number == to_check:
                print(f'{number} frames of {frame.width}x{frame.height} equal on {gpu}; median:')
                for way, us in comparison.took.items():
                    print(f'  {way}, then the kernel: {median(us):.0f} us')
                break


if __name__ == '__main__':
    main()
