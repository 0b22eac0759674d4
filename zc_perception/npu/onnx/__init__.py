"""Real detectors on real pixels: ONNX Runtime with any of its execution providers, and OpenCV's HOG."""
