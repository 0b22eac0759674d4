"""Accelerators behind one small interface, the models they load, and the pipeline that keeps frames in order. No ROS."""
