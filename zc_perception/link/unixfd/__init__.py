"""
GStreamer's own ``unixfd`` protocol.

A stock ``unixfdsrc`` of GStreamer 1.24 or newer reads a camera's frames from their own memory.
:mod:`~zc_perception.link.unixfd.wire` packs and parses the commands,
:mod:`~zc_perception.link.unixfd.server` serves the readers. Neither needs GStreamer.
"""
