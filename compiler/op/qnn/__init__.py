"""Operators on integers with scales and zero points, and on scaled number formats."""
