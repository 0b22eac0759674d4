"""
Sets up what the package needs on a machine without ROS.

An environment, interface packages, Debian files.

Everything but `rosidl_build` needs the standard library alone: it runs before there is an
environment.
"""
