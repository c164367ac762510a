"""What number formats cost in hardware: netlists that were synthesized, and published tables."""
