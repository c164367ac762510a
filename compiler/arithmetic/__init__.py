"""What scalar operations mean, on arrays and as expressions."""
