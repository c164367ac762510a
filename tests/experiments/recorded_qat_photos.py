"""What results/README.md says of results/qat_photos.csv, as lines made from the table.

`PYTHONPATH=. python tests/experiments/recorded_qat_photos.py` prints the section.
"""

import tomllib
from functools import cache
from pathlib import Path

from recorded_qat import found_in

from experiments.layers.answers import Gain

RESULTS = Path(__file__).parents[2] / "results"
FILE = RESULTS / "qat_photos.csv"
SPEC = tomllib.loads((RESULTS / "qat_photos.toml").read_text())
STEPS = SPEC["epochs"] * (64 // SPEC["batch"])
_HEAD = f"""\
### qat_photos.csv

The last blocks of efficientnet-lite0 (from `node_conv2d_33` on) in weights and activations of 4
bits, the rest in 8 (columns as of qat.csv). {STEPS} steps of {SPEC["batch"]} of 64 photographs
without labels, moved and mirrored, towards the float32 network's shares at temperature
{SPEC["temperature"]:g}, {len(SPEC["seeds"])} seeds, from AdaRound's rounding; judged on 94 other
photographs, four views of each, of which the mean counts. The temperature was chosen on 16 of the
64, held out of a training of the rest; how many steps, and that training starts from AdaRound's
rounding, by earlier trials, which were judged on the same 94. `static` are the same integers after
training; `any` has blocks of sixteen, too, with scales that are found while they run, and only
factors of products rounded: more bits in sum. The best is chosen by these same photographs, for
each measure. `top1` is how often the answer is float32's, in %, `kl` the mean divergence from it,
in thousandths of a nat. What training gains has a 95 % interval by photograph (Student's t, of the
means over the seeds).

| measure | of | trained | best without | which | gain |
|---|---|---|---|---|---|"""


def which(system: str) -> str:
    """A system without training in a word."""
    kinds = ("nvint4", "nvfp4", "adaround", "gptq")
    return next((k for k in kinds if k in system), "nearest")


@cache
def found() -> list[tuple[str, Gain]]:
    """What training gains over which of `OF`, in the table's order."""
    return found_in(FILE)


def line(of: str, g: Gain) -> str:
    """A line of the table in results/README.md."""
    by = 100 if g.measure == "top1" else 1000
    mean, reached, gain, low, high = (
        f"{by * v:z.1f}" for v in (g.mean, g.reached, g.gain, g.low, g.high)
    )
    cells = g.measure, of, mean, reached, which(g.best), f"{gain} [{low}, {high}]"
    return f"| {' | '.join(cells)} |"


def said() -> str:
    """The sentence below the table: where training surely gains, and where it loses."""
    gained = [f"{g.measure}, {of}" for of, g in found() if g.low > 0]
    lost = [f"{g.measure}, {of}" for of, g in found() if g.high < 0]
    return (
        f"By more than chance it gains in: {'; '.join(gained) or 'none'}; "
        f"and loses in: {'; '.join(lost) or 'none'}."
    )


if __name__ == "__main__":
    print(_HEAD, *(line(*pair) for pair in found()), "", said(), sep="\n")
