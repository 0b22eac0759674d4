"""Prints the brightness of each camera frame, without copying the frame. Ctrl-C ends it."""
from contextlib import suppress

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node

from zc_perception import Frame, FrameSubscription


class Viewer(Node):
    def __init__(self, **options):               # a component container passes rclpy.Node's options
        super().__init__('viewer', **options)
        self.frames = FrameSubscription(self, 'image_raw', self.on_frame)

    def on_frame(self, frame: Frame):            # the camera's own buffer, until this returns
        with frame.map() as planes:              # NumPy arrays of its planes: nothing is copied
            brightness = planes[0].mean()
        self.get_logger().info(f'frame {frame.data.sequence}: brightness {brightness:.1f}')

    def destroy_node(self):
        self.frames.destroy()                    # gives back the frames that still wait
        super().destroy_node()


if __name__ == '__main__':
    rclpy.init()
    with suppress(KeyboardInterrupt, ExternalShutdownException):
        rclpy.spin(Viewer())
