"""What passes are made of: the pass manager, walks over programs, rewriting, type inference."""
