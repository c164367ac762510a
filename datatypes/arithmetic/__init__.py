"""What the operations of a described format mean: exact, on arrays of codes."""
