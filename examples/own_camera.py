"""Publishes pictures of its own as a camera does, without a copy. Ctrl-C ends it."""

from contextlib import suppress

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node

from zc_perception import FramePublisher


class OwnCamera(Node):
    def __init__(self, **options):  # a component container passes rclpy.Node's options
        super().__init__('own_camera', **options)
        self.frames = FramePublisher(self, 'image_raw', width=640, height=480, format='NV12')
        self.timer = self.create_timer(1 / 30, self.on_timer)

    def on_timer(self):
        with self.frames.loan() as out:  # a free buffer: it is sent when the block ends
            out.planes[0][:], out.planes[1][:] = 80, 128  # NumPy arrays: write luma and chroma


if __name__ == '__main__':
    rclpy.init()
    with suppress(KeyboardInterrupt, ExternalShutdownException):
        rclpy.spin(OwnCamera())
