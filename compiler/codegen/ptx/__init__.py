"""The backend of NVIDIA's GPUs: loop nests on grids of threads as LLVM text, and that as PTX."""
