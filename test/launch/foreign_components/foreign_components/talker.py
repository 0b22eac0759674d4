"""Says something ten times a second."""

from rclpy.node import Node
from std_msgs.msg import String


class Talker(Node):
    """The component."""

    def __init__(self, **kwargs):
        super().__init__('talker', **kwargs)
        self.declare_parameter('text', 'hello')
        self._publisher = self.create_publisher(String, 'chatter', 10)
        self.create_timer(0.1, self._say)

    def _say(self):
        self._publisher.publish(String(data=self.get_parameter('text').value))
