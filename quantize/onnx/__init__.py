"""Plans as ONNX models of float operators between QuantizeLinear and DequantizeLinear."""
