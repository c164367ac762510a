"""oneDNN as an engine."""
