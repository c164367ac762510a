"""A program that runs, or resumes, a sweep of quick stand-ins with two workers, to be killed.

    python slow_sweep.py OUT.csv REPEATS

Its workers import this file too, and so replace the compiler as it does.
"""

import sys
from typing import Any

import fake_pipeline

import experiments

fake_pipeline.install(pause_s=0.02)


def spec(repeats: int) -> dict[str, Any]:
    return {
        "models": ["mnist_mlp", "mnist_resnet8"],
        "schemes": ["float32", "int8_tensor", "bfloat16"],
        "calibrators": ["minmax"],
        "repeats": repeats,
        "n_eval": 50,
        "n_calib": 20,
        "latency": {"runs": 0},
        "layers": {"images": 1},
    }


if __name__ == "__main__":
    out, repeats = sys.argv[1:]
    experiments.sweep(spec(int(repeats)), out, resume=True, jobs=2, progress=False)
