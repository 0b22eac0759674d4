"""Adapted publisher and subscription: the only part of the link that knows rclpy."""

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
