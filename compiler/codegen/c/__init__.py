"""The C backend: loop nests as C11."""
