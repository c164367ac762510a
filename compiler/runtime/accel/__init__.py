"""Accelerators, simulated: what runs instruction streams and counts cycles."""
