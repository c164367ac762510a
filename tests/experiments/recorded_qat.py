"""What results/README.md says of results/qat.csv, as lines made from the table.

`PYTHONPATH=. python tests/experiments/recorded_qat.py` prints the section.
"""

from functools import cache
from pathlib import Path

from experiments.layers.answers import Gain, answers_path, gains, read_answers
from experiments.layers.trainings import read_runs

RESULTS = Path(__file__).parents[2] / "results"
FILE = RESULTS / "qat.csv"
NETWORKS = ["mnist_mlp", "mnist_resnet8", "mnist_dwsep", "mnist_vit"]
_HEAD = """\
### qat.csv

Weights and activations of 4 bits (columns as of training.csv; `qat.answers.csv` has for each run
and test digit whether the answer was `right`, and its divergence `kl` from float32 in nats). 24
epochs of 4000 digits, moved by up to two pixels, towards the float32 network's shares at
temperature 4, 3 seeds; rate, temperature and epochs were chosen by shorter and longer trainings
judged on the last thousand of these digits, of networks trained on the rest (that digits are moved,
and that training starts from GPTQ's rounding, by earlier trials, which were judged on test digits).
What is trained are static integers: a step for each channel of weights, and one for each tensor
of activations. Beside it is the best way to quantize after training, of the three of the same
numbers (`static`), and of all seven (`any`), of which some have scales of blocks that are found
while they run, more bits in sum. It is chosen by these same 1000 test digits, for each measure:
`top1` in % of right answers, `kl` the mean divergence in thousandths of a nat. What training gains
has a 95 % interval, paired by digit (Student's t, of each digit's mean over the seeds).

| network | measure | of | trained | best without | which | gain |
|---|---|---|---|---|---|---|"""
OF = "static", "any"


@cache
def found() -> list[tuple[str, Gain]]:
    """What training gains over which of `OF`, in the table's order."""
    return found_in(FILE)


def found_in(file: Path) -> list[tuple[str, Gain]]:
    """The same of any such table."""
    rows, answers = read_runs(file), read_answers(answers_path(file))
    static = rows[rows["system"].str.contains("int8_channel")]
    pairs = zip(gains(static, answers), gains(rows, answers), strict=True)
    return [(of, g) for pair in pairs for of, g in zip(OF, pair, strict=True)]


def line(of: str, g: Gain) -> str:
    """A line of the table in results/README.md."""
    by, digits = (100, 1) if g.measure == "top1" else (1000, 2)
    mean, reached, gain, low, high = (
        f"{by * v:z.{digits}f}" for v in (g.mean, g.reached, g.gain, g.low, g.high)
    )
    best = g.best.removeprefix("post-training ")
    cells = g.model, g.measure, of, mean, reached, best, f"{gain} [{low}, {high}]"
    return f"| {' | '.join(cells)} |"


def said() -> str:
    """The sentence below the table: where training surely gains, and where it does not."""
    surely = [f"{g.model} ({g.measure}, {of})" for of, g in found() if g.low > 0]
    loses = [f"{g.model} ({g.measure}, {of})" for of, g in found() if g.high < 0]
    return f"Gain by more than chance: {', '.join(surely) or 'none'}; lose: " + (
        f"{', '.join(loses) or 'none'}."
    )


if __name__ == "__main__":
    print(_HEAD, *(line(*pair) for pair in found()), "", said(), sep="\n")
