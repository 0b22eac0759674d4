"""
The Metis driver's import and submit ioctls: the card reads the camera's own buffer.

Read ``accelerator`` first, then ``device`` (one method per ioctl) and ``abi`` (the structs).
``probe`` asks the driver that Axelera ships today.
"""
