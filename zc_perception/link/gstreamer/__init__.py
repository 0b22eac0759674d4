"""
Frames into a GStreamer pipeline of this process, from their own memory.

:mod:`~zc_perception.link.gstreamer.lent_frames` makes buffers of them and gets them back,
:mod:`~zc_perception.link.gstreamer.run` is one run of a pipeline,
:mod:`~zc_perception.link.gstreamer.feed` keeps one running,
:mod:`~zc_perception.link.gstreamer.h264` takes H.264 out of its end.
"""
