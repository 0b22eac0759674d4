"""How a frame reaches a consumer: type adapter, in-process bus, conversion to and from ``sensor_msgs/Image``, endpoints."""
