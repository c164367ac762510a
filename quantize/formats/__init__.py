"""Scaled number formats: values are kept as a scale times a number of a registered format.

`storage`: operands of convolutions, dense layers and products of activations are rounded, and the
arithmetic is float32. `native`: products and sums are computed in the format itself. Block formats
(`quantize.formats.blocks`) have a scale, itself in a format, for every few elements.
"""
