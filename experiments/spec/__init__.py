"""Specifications of sweeps: reading, axes, rules, and the cells they span."""
