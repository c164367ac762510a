"""A quantized network computed from its plan alone: the oracle of realization."""
