"""Accuracy, latency, energy and size: what a row of results says."""
