"""What runs programs on NVIDIA's GPUs, by their driver."""
