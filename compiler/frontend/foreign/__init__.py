"""Nodes of ONNX files that are onnxruntime's to compute: we have no operator for them."""
