"""One command that measures speed: `python -m experiments.benchmarks [OPTIONS] [GROUP ...]`.

The groups `networks`, `transformers`, `decode`, `convolutions`, `emulation`, `compile`, `passes`,
`widths`, `calibration`, `fixed_cost`, `exported`, `training` and `accuracy` have targets: they
print PASS or FAIL a row, and a FAIL makes the exit status 1. So do `accelerator`, which counts
simulated cycles, `torch_bert`, `torch_compile`, `torch_gradient` and `torch_integers`, which need
torch, `engines`, which needs oneDNN, `wasm`, which needs Node and onnxruntime-web, `elsewhere` and
`microcontrollers`, which count instructions in emulators, and `tuned` and `cost_model`, which take
hours and minutes, and `cuda`, which needs an NVIDIA GPU: they run when named, as does
`cuda_kernels`, which counts what kernels of GPUs take.
`shapes` prints shares of the peak. The others time their cases interleaved with a named baseline,
pinned to one core, and print medians and ratios (baseline / case: above 1 the case is faster);
the groups `threads`, `compile`, `calibration` and `fixed_cost` have all cores.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from compiler.errors import DtypelabError
from experiments.benchmarks import (
    accelerator,
    accuracy,
    calibration,
    convolutions,
    cost_model,
    cost_ranks,
    cuda_kernels,
    cuda_speed,
    data,
    decode,
    elsewhere,
    emulation,
    exported,
    fixed_cost,
    handed_over,
    kernels,
    microcontrollers,
    models,
    networks,
    passes,
    shapes,
    startup,
    threads,
    torch_bert,
    torch_compile,
    torch_gradient,
    torch_integers,
    torch_networks,
    training_steps,
    transformers,
    tuned,
    tuned_long,
    tuned_networks,
    webassembly,
    widths,
)
from experiments.benchmarks.report import Group
from experiments.benchmarks.turns import Effort
from experiments.measure.disturbance import pinned

GROUPS: dict[str, Callable[[], list[Group]]] = {
    "kernels": kernels.groups,
    "threads": threads.groups,
    "data": data.groups,
}
ALL_GROUPS = (
    "networks",
    "transformers",
    "decode",
    "convolutions",
    "shapes",
    "emulation",
    "compile",
    "passes",
    "widths",
    "calibration",
    "fixed_cost",
    "exported",
    "training",
    "accuracy",
    *GROUPS,
)
NETWORKS = sorted(
    {*models.MODELS, *transformers.NETWORKS, *accuracy.TARGETS, *torch_networks.NETWORKS}
)
NAMED = (
    *("accelerator", "cost_model", "cuda", "cuda_kernels", "elsewhere", "engines"),
    "microcontrollers",
    "torch_bert",
    *("torch_compile", "torch_gradient", "torch_integers", "tuned", "wasm"),
)
"""Groups that need packages or emulators of their own, or hours, and run only when they are
named."""
ALL_CORES = {"threads"}
"""Groups that are not pinned to one core."""


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*ALL_GROUPS, *NAMED]), metavar="[GROUP]...")
@click.option(
    "--model",
    "selected",
    multiple=True,
    type=click.Choice(NETWORKS),
    help="Measure this network only; may be repeated.",
)
@click.option(
    "--model-file",
    "given",
    multiple=True,
    metavar="NAME=PATH",
    help=f"Where a network's file is (or put NAME.onnx in ${models.FOLDER_VARIABLE}).",
)
@click.option(
    "--threads",
    "counts",
    multiple=True,
    type=click.IntRange(min=1),
    default=(1, 2),
    show_default=True,
    metavar="N",
    help="Threads of networks and widths; may be repeated.",
)
@click.option("--runs", type=click.IntRange(min=1), default=30, show_default=True, metavar="N")
@click.option("--layers", "whole", is_flag=True, help="Transformers with all their layers.")
@click.option("--quick", is_flag=True, help="Short slices and few runs: rough figures.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(tuned_networks.NETWORKS)),
    help="Tune this network only; may be repeated.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    metavar="N",
    help="Candidates of each kernel that is tuned.",
)
@click.option(
    "--long",
    "long_trials",
    type=click.IntRange(min=2),
    metavar="N",
    help="Of `tuned`: instead, what --trials find of what so many find, in sampled kernels.",
)
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Kernels that --long samples.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Where the rows of tuned networks go, or the trials of cost_model (.jsonl); those that it "
    "has are not measured again. Or the rows of cuda_kernels.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE.jsonl",
    help="Of `cost_model`: measure nothing, but learn and pick from this log; with several, each "
    "is ranked by what was learned from it alone, and from all.",
)
def main(
    names: Sequence[str],
    selected: Sequence[str],
    given: Sequence[str],
    counts: Sequence[int],
    runs: int,
    whole: bool,
    quick: bool,
    only: Sequence[str],
    trials: int,
    long_trials: int | None,
    tasks: int,
    output: Path | None,
    logs: Sequence[Path],
) -> None:
    """Measure networks, convolutions, kernels, calibration and emulation against their baselines.

    Example: python -m experiments.benchmarks networks --model resnet50 --threads 1 --quick
    """
    effort = Effort.of(runs, quick)
    passed = True
    try:
        for name in names or ALL_GROUPS:
            if name == "networks":
                chosen = [n for n in selected if n in models.MODELS]
                if chosen or not selected:
                    passed &= networks.run(chosen, counts, effort, dict(map(named_file, given)))
            elif name == "transformers":
                chosen = [n for n in selected if n in transformers.NETWORKS]
                if chosen or not selected:
                    passed &= transformers.run(chosen, counts, effort, whole)
            elif name == "engines":
                chosen = [n for n in selected if n in handed_over.NETWORKS]
                if chosen or not selected:
                    files = dict(map(named_file, given))
                    passed &= handed_over.run(chosen, counts, quick, whole, files)
            elif name == "microcontrollers":
                passed &= microcontrollers.run()
            elif name == "cost_model":
                passed &= cost_ranks.run(logs) if logs else cost_model.run(quick, output)
            elif name == "cuda":
                passed &= cuda_speed.run(quick, dict(map(named_file, given)))
            elif name == "cuda_kernels":
                passed &= cuda_kernels.run(output)
            elif name == "accelerator":
                passed &= accelerator.run()
            elif name == "tuned" and long_trials is not None:
                files = dict(map(named_file, given))
                passed &= tuned_long.run(only, trials, long_trials, tasks, quick, output, files)
            elif name == "tuned":
                passed &= tuned.run(only, trials, quick, output, dict(map(named_file, given)))
            elif name == "torch_bert":
                passed &= torch_bert.run(counts, effort, whole)
            elif name == "torch_gradient":
                passed &= torch_gradient.run(counts, effort)
            elif name == "torch_integers":
                passed &= torch_integers.run()
            elif name == "torch_compile":
                chosen = [n for n in selected if n in torch_networks.NETWORKS]
                if chosen or not selected:
                    passed &= torch_compile.run(chosen, counts, effort)
            elif name == "decode":
                passed &= decode.run(counts, effort, quick)
            elif name == "convolutions":
                passed &= convolutions.run(effort)
            elif name == "shapes":
                shapes.run(effort)
            elif name == "emulation":
                passed &= emulation.run(effort)
            elif name == "compile":
                passed &= startup.run(effort, dict(map(named_file, given)))
            elif name == "passes":
                passed &= passes.run(effort, dict(map(named_file, given)))
            elif name == "widths":
                passed &= widths.run(counts, effort, dict(map(named_file, given)))
            elif name == "calibration":
                passed &= calibration.run(effort.rounds, dict(map(named_file, given)))
            elif name == "fixed_cost":
                passed &= fixed_cost.run(effort.rounds)
            elif name == "exported":
                passed &= exported.run(effort)
            elif name == "wasm":
                passed &= webassembly.run(effort, dict(map(named_file, given)))
            elif name == "elsewhere":
                passed &= elsewhere.run(selected, dict(map(named_file, given)))
            elif name == "training":
                passed &= training_steps.run(effort)
            elif name == "accuracy":
                chosen = [n for n in selected if n in accuracy.TARGETS]
                if chosen or not selected:
                    files = dict(map(named_file, given))
                    passed &= accuracy.run(chosen, effort.rounds, files, quick)
            else:
                with contextlib.nullcontext() if name in ALL_CORES else pinned(1):
                    for group in GROUPS[name]():
                        click.echo(group.render(effort.runs))
    except DtypelabError as error:
        raise click.UsageError(str(error)) from error
    sys.exit(0 if passed else 1)


def named_file(text: str) -> tuple[str, Path]:
    """The parts of NAME=PATH.

    Raises:
        click.UsageError: it is none.
    """
    name, equals, path = text.partition("=")
    if not equals or not path:
        raise click.UsageError(f"--model-file {text!r} is not NAME=PATH")
    return name, Path(path)


if __name__ == "__main__":
    main()
