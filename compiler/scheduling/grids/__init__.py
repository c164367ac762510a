"""What loop nests become before and when they are grids of threads, one idea a file."""
