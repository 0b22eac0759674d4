"""
Cameras of GStreamer pipelines.

Read ``camera`` first. It runs a ``pipeline``, reads from caps and samples what they are
(``image``), and makes slots of their buffers (``buffers``). ``abi`` is GStreamer's C interface by
ctypes.
"""
