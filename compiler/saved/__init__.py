"""Executables as files: machine code and plain data, of which nothing is executed on reading."""
