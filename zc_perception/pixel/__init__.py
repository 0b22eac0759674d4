"""
What bytes mean: formats, modifiers, where planes lie, colours, and conversions between formats.

No memory is owned here.

Read first: ``fourcc`` (the table of formats), then ``layout`` (an image's planes in its buffers),
``modifier`` and ``colorimetry``. ``format_names`` and ``drm_format`` translate names to those of
V4L2, GStreamer, NvBufSurface and ROS. ``readable`` says which formats the CPU reads and at what
cost; ``samples`` reads them, ``conversion`` and ``nv12`` convert. ``image_encodings`` has what
messages and recordings bring, and ``raw_picture`` reads it.
"""
