"""
Publishers and subscriptions for ROS nodes.

Read ``publisher`` and ``subscription`` first: they take objects of any type. ``frame_publisher``
and ``frame_subscription`` (with ``FrameReader`` and the camera subscription) are these for camera
frames, with everything chosen that can be. ``announcer`` says who publishes, ``discovery`` finds
that out, ``remote_links`` connects to other processes, and ``executor_turns`` runs the link's work
on a
node's executor.
"""

from zc_perception.frame import Frame
from zc_perception.link.endpoints.message_writer import ExtraMessage
from zc_perception.link.endpoints.publisher import AdaptedPublisher, PublisherStatistics
from zc_perception.link.endpoints.qos import IN_PROCESS_ATTRIBUTE
from zc_perception.link.endpoints.remote_links import SharedMemoryLinks
from zc_perception.link.endpoints.subscription import AdaptedSubscription, SubscriptionStatistics
from zc_perception.link.image_conversion import RosHeaders
from zc_perception.link.rungs import IN_PROCESS, REFUSED, ROS_MESSAGE, SHARED_MEMORY, UNMATCHED

__all__ = [
    'IN_PROCESS',
    'IN_PROCESS_ATTRIBUTE',
    'REFUSED',
    'ROS_MESSAGE',
    'SHARED_MEMORY',
    'UNMATCHED',
    'AdaptedPublisher',
    'AdaptedSubscription',
    'ExtraMessage',
    'PublisherStatistics',
    'SharedMemoryLinks',
    'SubscriptionStatistics',
]

Frame.make_messages_by(RosHeaders())
