"""Sweeps: cells run here, on worker processes or a cluster, and again to reproduce them."""
