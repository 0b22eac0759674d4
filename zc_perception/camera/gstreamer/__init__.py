"""Any GStreamer pipeline as a camera."""
