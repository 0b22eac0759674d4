"""A camera at the stock nodes: its controls as a ROS user turns them, and a format that consumers read as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from .camera_kit import SINGLE, check
from .harness import eventually


@check
def controls_are_parameters_of_the_capture_node_and_change_the_picture() -> None:
    # Only this check needs ROS, whose import takes long in the guest.
    import rclpy
    from rcl_interfaces.srv import SetParameters
    from rclpy.node import Node
    from rclpy.parameter import Parameter
    from rclpy.qos import QoSProfile

    from zc_perception.frame import Frame
    from zc_perception.link.endpoints import AdaptedSubscription
    from zc_perception.link.image_conversion import frame_adapter
    from zc_perception.memory.ledger import CopyLedger
    from zc_perception.nodes.capture import CaptureNode
    from zc_perception.nodes.process import NodeGroup

    means: list[float] = [0.0]

    def look(frame: Frame) -> None:
        with frame.map() as planes:
            means[0] = float(planes[0][::8, ::8, 0].mean())  # luma comes first in YUYV

    context = rclpy.Context()
    rclpy.init(context=context)
    try:
        values = {'camera': 'v4l2', 'device': SINGLE, 'width': 640, 'height': 360, 'framerate': 30.0, 'pixel_format': 'YUYV'}
        node = CaptureNode(context=context, parameter_overrides=[Parameter(name, value=value) for name, value in values.items()])
        user = Node('user', context=context)
        adapter = frame_adapter('mono8', CopyLedger(), holder='user')
        subscription = AdaptedSubscription(user, adapter, 'image_raw', QoSProfile(depth=1), callback=look)
        client = user.create_client(SetParameters, '/capture/set_parameters')

        def ask(name: str, value: object) -> tuple[bool, str]:
            parameter = Parameter(f'controls.{name}', value=value).to_parameter_msg()
            done, future = threading.Event(), client.call_async(SetParameters.Request(parameters=[parameter]))
            future.add_done_callback(lambda _: done.set())
            assert done.wait(30), 'the parameter service did not answer'
            (result,) = future.result().results
            return result.successful, result.reason

        with NodeGroup(context, (node,), lambda: None) as group:
            group.add_node(user)
            node.configure_now()
            group.start()
            assert client.wait_for_service(60), 'no parameter service'
            default = node.get_parameter('controls.brightness').value
            assert ask('brightness', 40) == (True, '')
            eventually(lambda: 0 < means[0] < 110, 'a dark picture', 60)
            dark = means[0]
            assert ask('brightness', 220) == (True, '')
            eventually(lambda: means[0] > dark + 60, 'a bright picture', 60)
            refused, reason = ask('brightness', 256)
            assert not refused and '255' in reason, reason
            assert ask('brightness', default)[0]
            subscription.destroy()
        assert group.failure is None, group.failure
        user.destroy_node()
    finally:
        context.try_shutdown()


@check
def yuyv_frames_of_the_driver_reach_the_stock_nodes_and_become_boxes_and_pictures() -> None:
    # A process of its own: ONNX Runtime and the middleware keep files open for as long as they live.
    test = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(test), str(test.parent)])
    done = subprocess.run(
        [sys.executable, '-m', 'rig.guest.yuyv_nodes', SINGLE], env={**os.environ, 'PYTHONPATH': paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
