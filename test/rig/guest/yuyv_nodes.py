"""Stock nodes with a YUYV camera, in one process: ``python -m rig.guest.yuyv_nodes /dev/video0``. Status 0: boxes and pictures came."""

from __future__ import annotations

import sys

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.process import NodeGroup
from zc_perception.pixel.fourcc import fourcc_name

from .harness import eventually


def main(device: str) -> None:
    """Watch until both came, and look at them."""
    context, reader_context, ledger = rclpy.Context(), rclpy.Context(), CopyLedger()
    for each in (context, reader_context):
        rclpy.init(context=each)
    try:
        values = {'camera': 'v4l2', 'device': device, 'width': 320, 'height': 180, 'framerate': 5.0, 'pixel_format': 'YUYV'}
        capture = CaptureNode(ledger=ledger, context=context, parameter_overrides=[Parameter(n, value=v) for n, v in values.items()])
        model = [Parameter('accelerator', value='cpu'), Parameter('model', value='road'), Parameter('timeout', value=60.0)]
        inference = InferenceNode(ledger=ledger, context=context, parameter_overrides=model)
        user = Node('user', context=reader_context)
        pictures: list[Image] = []
        answers: list[Detection2DArray] = []
        user.create_subscription(Image, 'image_raw', pictures.append, 1)
        user.create_subscription(Detection2DArray, 'detections', answers.append, 10)
        executor = SingleThreadedExecutor(context=reader_context)
        executor.add_node(user)

        def both() -> bool:
            executor.spin_once(timeout_sec=0.1)
            return bool(pictures) and len(answers) > 1

        with NodeGroup(context, (capture, inference), lambda: None) as group:
            group.start()
            eventually(both, 'detections and a picture', 120)
            pool = capture.camera.pool
            assert pool is not None and fourcc_name(pool.layout.fourcc) == 'YUYV', pool
            assert {buffer.heap for slot in pool.slots for buffer in slot.buffers} == {'v4l2/vivid'}
            assert {name for name, entry in ledger.entries().items() if entry.count} == {'tensor', 'to_ros'}, ledger.entries()
            picture = pictures[-1]
            assert (picture.encoding, picture.width, picture.height) == ('rgb8', 320, 180)
            # vivid's first test pattern has bars of full colours.
            assert min(max(picture.data[channel::3]) for channel in range(3)) > 150
        assert group.failure is None, group.failure
        executor.shutdown()
        user.destroy_node()
    finally:
        for each in (context, reader_context):
            each.try_shutdown()


if __name__ == '__main__':
    main(sys.argv[1])
