"""The results file, and tables of it."""
