"""OpenCV's HOG people detector: no weights file."""
