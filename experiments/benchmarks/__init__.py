"""Speed of kernels, calibration and emulation, as ratios: `python -m experiments.benchmarks`."""
