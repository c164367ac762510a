"""Channels made alike before they are quantized: what one layer's results are divided by, the
weights that read them are multiplied with, and the network computes what it did.

`factors` is how a plan records it and how it is put into a module, `equalization` and `smoothing`
choose the factors.
"""
