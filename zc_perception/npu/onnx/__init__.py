"""Real detectors on real pixels: ONNX Runtime with any execution provider, and OpenCV's HOG."""
