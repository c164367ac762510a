"""What results/README.md says of tables of trainings, as lines made from the tables.

`PYTHONPATH=. python tests/experiments/recorded_trainings.py training_cnn` prints those of
results/training_cnn.csv.
"""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.layers.training_summary import Summary, summaries
from experiments.layers.trainings import read_runs
from experiments.measure.statistics import student95

RESULTS = Path(__file__).parents[2] / "results"
_FP8 = "float8_e4m3fn{0} float32, backward float8_e5m2{1} float32{2}, loss x dynamic from 1024"
_POSIT8 = "posit8_es1 float32, update posit8_es1{0} float32, loss x 1024"
_BFLOAT16 = "loss bfloat16 float32, statistics bfloat16 float32"
CONTRASTS = {
    "training_cnn": (
        ("weights in float8_e4m3fn: rounded at random, not to nearest",
         _FP8.format("", "", ", update float8_e4m3fn float32"),
         _FP8.format("", "", ", update float8_e4m3fn_stochastic float32")),
        ("weights in posit8_es1: rounded at random, not to nearest",
         _POSIT8.format(""), _POSIT8.format("_stochastic")),
        ("weights in bfloat16: rounded at random, not to nearest",
         "bfloat16 float32", f"bfloat16 float32, update bfloat16_stochastic float32, {_BFLOAT16}"),
        ("gradients in float8_e5m2: rounded at random, not to nearest",
         _FP8.format("", "", ""), _FP8.format("", "_stochastic", "")),
        ("weights in float32, not in bfloat16", "bfloat16 float32", "bfloat16 float32 mixed"),
        ("bfloat16: sums in float32, not in bfloat16", "bfloat16 mixed", "bfloat16 float32 mixed"),
        ("float8: sums in float16, not in float8", "float8_e4m3fn, backward float8_e5m2, loss x "
         "dynamic from 1024", _FP8.format("", "", "").replace("float32", "float16")),
        ("float8: sums in float32, not in float16",
         _FP8.format("", "", "").replace("float32", "float16"), _FP8.format("", "", "")),
        ("posit8_es1: sums in float32, not in posit8_es1",
         "posit8_es1 mixed, loss x 1024", "posit8_es1 float32 mixed, loss x 1024"),
        ("posit8_es1: exact sums, not in float32",
         "posit8_es1 float32 mixed, loss x 1024", "posit8_es1 exact mixed, loss x 1024"),
        ("posit8_es1: the loss x 1024", "posit8_es1 float32 mixed",
         "posit8_es1 float32 mixed, loss x 1024"),
        ("float8: the loss x a dynamic scale",
         _FP8.format("", "", "").partition(", loss")[0], _FP8.format("", "", "")),
        ("float16: the loss x a dynamic scale", "float16 float32 mixed",
         "float16 float32 mixed, loss x dynamic from 1024"),
    ),
    "training_vit": (
        ("weights in bfloat16: rounded at random, not to nearest",
         "bfloat16 float32", f"bfloat16 float32, update bfloat16_stochastic float32, {_BFLOAT16}"),
        ("weights in float32, not in bfloat16", "bfloat16 float32", "bfloat16 float32 mixed"),
        ("bfloat16: sums in float32, not in bfloat16", "bfloat16", "bfloat16 float32"),
    ),
}  # fmt: skip
"""What changes, from which system, to which."""


INTRODUCTIONS = {
    "training_cnn": (
        "Two convolutions of 8 and 16 channels with batch normalization, and a dense layer (9,122\n"
        "weights), from random weights: 10 epochs of 4000 digits in batches of 50, by SGD with\n"
        "momentum and weight decay.\n"
    ),
    "training_vit": (
        "A vision transformer of 16 patches, 32 wide, of two layers (19,594 weights), from random\n"
        "weights: 10 epochs of 4000 digits in batches of 50, by AdamW.\n"
    ),
}


@cache
def rows_of(name: str) -> pd.DataFrame:
    """The rows of results/NAME.csv."""
    return read_runs(RESULTS / f"{name}.csv")


@cache
def recorded(name: str) -> dict[str, Summary]:
    """Its runs of several seeds, put together, by system."""
    return {s.system: s for s in summaries(rows_of(name))}


def section(name: str) -> str:
    """What results/README.md says of the table."""
    text = (RESULTS / "README.md").read_text()
    return text.partition(f"### {name}.csv\n")[2].partition("\n##")[0]


def line(s: Summary) -> str:
    """A line of its table of systems."""
    ends = f"[{100 * s.low:z.1f}, {100 * s.high:z.1f}]"
    return f"| {s.system} | {100 * s.mean:z.1f} | {100 * s.lost:z.1f} | {ends} |"


def losing(name: str) -> list[str]:
    """The systems whose interval says that they lose."""
    return [s.system for s in recorded(name).values() if s.low > 0]


def contrast(name: str, what: str, before: str, after: str) -> str:
    """A line of its table of changes: points that they gain, seed by seed."""
    rows = rows_of(name).set_index("config_hash")
    both = [
        rows.loc[list(recorded(name)[system].hashes)].set_index("seed")["metric"]
        for system in (before, after)
    ]
    gains = 100 * (both[1] - both[0]).to_numpy(np.float64)
    half = student95(len(gains) - 1) * gains.std(ddof=1) / len(gains) ** 0.5
    mean = gains.mean()
    return f"| {what} | {mean:z.1f} | [{mean - half:z.1f}, {mean + half:z.1f}] |"


def main(name: str) -> None:
    """Print its section of results/README.md."""
    print(f"### {name}.csv\n\n{INTRODUCTIONS.get(name, '')}")
    print("| formats | top-1 % | lost | 95 % |\n|---|---|---|---|")
    for s in recorded(name).values():
        print(line(s))
    print(f"\n- Lose by more than chance: {', '.join(f'`{s}`' for s in losing(name)) or 'none'}.\n")
    print("Points that one change gains, seed by seed:\n")
    print("| what changes | gained | 95 % |\n|---|---|---|")
    for given in CONTRASTS.get(name, ()):
        print(contrast(name, *given))


if __name__ == "__main__":
    main(*sys.argv[1:])
