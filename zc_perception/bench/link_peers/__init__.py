"""What one would use instead of the links, besides plain rclpy messages; only its own module imports each, in a process of its own."""
