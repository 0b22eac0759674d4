"""``component_container``: loads and unloads Python components on request, as rclcpp's container does with C++ ones."""
