"""Operators of neural networks: convolution, matrix products, pooling, normalizations."""
