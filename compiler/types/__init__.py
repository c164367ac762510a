"""What values are: dtypes, tensor types with symbolic dimensions, and the names and words they are
written in."""
