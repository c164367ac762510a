"""QConfig: the choices of a quantization scheme, checked."""
