"""A quantized network whose weights and steps are variables, for training."""
