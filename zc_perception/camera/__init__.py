"""Cameras: where frames come from."""
