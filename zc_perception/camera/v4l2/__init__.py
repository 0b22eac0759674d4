"""
V4L2 cameras.

Read ``camera`` first. It chooses a format (``choice`` among those of ``formats``), gets buffers
(``memory``) and runs a ``stream`` on a ``device``, whose structs are in ``abi``. ``mjpeg`` decodes
the frames of cameras that give JPEGs; ``controls`` are brightness and similar settings.
"""
