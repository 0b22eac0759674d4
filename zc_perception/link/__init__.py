"""
How a frame reaches a consumer: by the best of three ways, which are called rungs.

Read :mod:`~zc_perception.link.rungs` first: it says which rungs there are, and how a subscription
chooses. Then follow a frame: :mod:`~zc_perception.link.endpoints.publisher` sends it, and each
rung has a room or a file. ``in_process`` is :mod:`~zc_perception.link.bus`, ``shared_memory`` is
:mod:`~zc_perception.link.shared_memory`, and ``ros_message`` is
:mod:`~zc_perception.link.endpoints.message_writer` with
:mod:`~zc_perception.link.image_conversion`. All of them end in the queue of
:mod:`~zc_perception.link.endpoints.subscription`. Before the first frame,
:mod:`~zc_perception.link.bus` brings cameras and consumers of the process together, and
:mod:`~zc_perception.link.announcement` tells other processes where a publisher's memory is.

Only ``endpoints`` and ``rclpy_compat`` import rclpy.
"""
