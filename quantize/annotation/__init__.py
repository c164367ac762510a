"""Which nodes get an integer form or a format, and why the others stay float."""
