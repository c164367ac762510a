"""A user's Python files: what they bring, what they mean, and processes to run them in."""
