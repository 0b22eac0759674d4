"""The road scene detector: ``model.onnx``, its manifest and its measured quality (data only)."""
