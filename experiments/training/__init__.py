"""Training: networks, the step as a program, optimizers, checkpoints, runs."""
