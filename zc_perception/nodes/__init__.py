"""The ROS nodes, their parameters, and the programs that run them."""
