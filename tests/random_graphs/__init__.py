"""Random ONNX graphs of every operator that is imported, for differential tests."""
