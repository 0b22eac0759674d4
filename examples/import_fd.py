"""Takes the buffer behind each frame into a library of your own: descriptor, format, modifier, planes.

Here mmap and zlib are that library: the CRC of the first plane shows that the pixels are reached.
EGL, Vulkan, V4L2 or a driver of your own take the same values. Ctrl-C ends it.
"""
import fcntl
import mmap
import os
import struct
import zlib
from contextlib import suppress

import rclpy
from rclpy.executors import ExternalShutdownException

from zc_perception import Frame, FrameSubscription

DMA_BUF_IOCTL_SYNC, BEGIN_READ, END_READ = 0x40086200, struct.pack('Q', 1), struct.pack('Q', 5)
imported = {}       # a camera has few buffers: import each one once, not for each frame


def import_buffers(data):
    for buffer in data.buffers:
        if buffer.identity not in imported:
            fd = os.dup(buffer.fileno())         # ours to close; the frame's own descriptor is not
            imported[buffer.identity] = fd, mmap.mmap(fd, buffer.size, prot=mmap.PROT_READ)
            fourcc = data.fourcc.to_bytes(4, 'little').decode()
            print(f'{buffer.kind.value} fd {fd}: {data.width}x{data.height} {fourcc}',
                  f'modifier {data.modifier:#x}', *data.planes, flush=True)


def on_frame(frame: Frame):        # the camera may reuse the buffer as soon as this returns
    data, plane = frame.data, frame.data.planes[0]
    import_buffers(data)
    if data.acquire_fence is not None and not data.acquire_fence.wait(1.0):
        return                     # a device is still writing to it
    buffer = data.buffers[plane.buffer]
    fd, memory = imported[buffer.identity]
    is_dmabuf = buffer.kind.value == 'dmabuf'    # otherwise a memfd, which only the CPU uses
    if is_dmabuf:
        fcntl.ioctl(fd, DMA_BUF_IOCTL_SYNC, BEGIN_READ)
    rows = range(plane.offset, plane.offset + plane.stride * data.height, plane.stride)
    crc = zlib.crc32(b''.join(memory[row:row + data.width] for row in rows))
    if is_dmabuf:
        fcntl.ioctl(fd, DMA_BUF_IOCTL_SYNC, END_READ)
    print(f'frame {data.sequence}: crc {crc:08x}', flush=True)


if __name__ == '__main__':
    rclpy.init()
    node = rclpy.create_node('importer')
    frames = FrameSubscription(node, 'image_raw', on_frame, copy_free_required=True)
    with suppress(KeyboardInterrupt, ExternalShutdownException):
        rclpy.spin(node)
