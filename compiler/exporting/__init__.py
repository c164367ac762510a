"""Ahead of time: programs as files that other programs are linked with, here or elsewhere."""

FORMS = ("source", "object", "static", "shared")
"""What a program is written as: C source, an object file, a static or shared library."""
