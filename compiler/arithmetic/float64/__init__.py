"""Functions of float64 as scalar expressions, for machines without a C library: see `pairs`."""
