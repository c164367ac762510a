"""GPUs by NVIDIA: the driver, memory there, and executables whose tensors stay there."""
