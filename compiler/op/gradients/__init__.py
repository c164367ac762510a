"""Rules of differentiation, a file a family of operators; definitions of operators name them."""
