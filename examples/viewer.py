"""Prints the brightness of each camera frame, without copying the frame. Ctrl-C ends it."""

from contextlib import suppress

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node

from zc_perception import create_frame_subscription, Frame


class Viewer(Node):
    def __init__(self, **options):  # a component container passes rclpy.Node's options
        super().__init__('viewer', **options)
        self.frames = create_frame_subscription(self, 'image_raw', self.on_frame)

    def on_frame(self, frame: Frame):  # the camera's own buffer, until this returns
        self.get_logger().info(f'frame {frame.sequence}: brightness {frame.y.mean():.1f}')


if __name__ == '__main__':
    rclpy.init()
    with suppress(KeyboardInterrupt, ExternalShutdownException):
        rclpy.spin(Viewer())
