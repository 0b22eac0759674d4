"""Zero-copy camera-to-NPU perception for ROS 2."""
