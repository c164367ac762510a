"""What goes into a program and comes out: inputs, sizes, assumptions, functions called outside."""
