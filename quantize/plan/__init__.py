"""Plans: every decision of a quantization as plain data."""
