"""dtypelab run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from compiler.boundary.elements import numbers
from experiments.data.archives import write_npz
from experiments.feeds import Feed, run_in_calls
from experiments.files import atomic_path, check_outputs
from experiments.systems import pipeline, schemes
from experiments.zoo import model_batches, model_files

from .common import (
    chosen_engines,
    echo_engines,
    echo_lowering,
    engine_facts,
    engine_options,
    format_options,
    input_option,
    json_option,
    load_feed,
    load_static,
    lowering_facts,
    model_argument,
    one_call,
    outputs_option,
    print_json,
    say,
    shape_option,
    target_options,
)
from .places import Places, echo_places, place_facts, place_option


@click.command(short_help="Run a model on inputs from a file.")
@model_argument
@input_option
@shape_option
@format_options
@target_options
@engine_options
@place_option
@click.option("--output", type=click.Path(path_type=Path), metavar="Y.npz", help="Save results.")
@outputs_option(text="Compute only this output.")
@json_option
def run(
    model: str,
    file: str,
    shapes: Sequence[str],
    dtype: str,
    accumulate: str | None,
    lowering: str | None,
    target: str,
    threads: int,
    engines: Sequence[str],
    engine_costs: str,
    places: Sequence[str],
    output: Path | None,
    chosen: Sequence[str],
    as_json: bool,
) -> None:
    """Compile MODEL, run it on the arrays in X.npz, and summarize or save the results.

    X.npz has an array for every input, by the name that the model gives it; open sizes are those of
    the arrays. Y.npz has an array for every output, by its name. A network that takes fewer
    examples at a time than there are rows is called several times.

    Results that the model declares as bfloat16, or as another type that numpy does not have, are
    saved as the same numbers in float32, int8 or uint8; --input takes them back.

    --place has devices compute nodes of the network, and whatever else copies the fewest bytes
    then; the rest is the target's.

    Example: dtypelab run mnist_mlp --input mnist1k --dtype bfloat16 --output y.npz
    """
    check_outputs([output], [*model_files.files_of(model), file])
    placed = Places.read(places)
    scheme = schemes.number_format(dtype, accumulate, lowering)
    wanted = chosen_engines(engines, engine_costs)
    feed = load_feed(model, file, shapes)
    first = one_call(model, feed)
    module = placed.apply(pipeline.retype(load_static(model, first.call(), chosen), scheme))
    executable = pipeline.build(module, scheme, placed.target(target), threads, engines=wanted)

    def call(part: Feed) -> list[pipeline.Array]:
        results = executable(part.call())
        return results if isinstance(results, list) else [results]

    path = model_files.model_file(model)
    names = model_files.output_names(path)
    axes = model_batches.result_axes(path, feed.sample) if len(feed) > len(first) else ()
    if chosen:
        axes = tuple(axes[names.index(name)] for name in chosen) if axes else ()
        names = tuple(chosen)
    outputs = dict(zip(names, run_in_calls(call, feed, len(first), axes), strict=True))
    if output:
        with atomic_path(output) as temporary, temporary.open("wb") as archive:
            write_npz(archive, {name: numbers(array) for name, array in outputs.items()})
    described = {name: _described(array) for name, array in outputs.items()}
    if as_json:
        facts = {"model": model, "dtype": dtype, **lowering_facts(executable)}
        facts |= {**engine_facts(executable, wanted), **place_facts(executable)}
        print_json({**facts, "outputs": described, "saved": str(output or "")})
        return
    echo_lowering(executable)
    echo_engines(executable, wanted)
    echo_places(executable)
    for name, facts in described.items():
        figures = (f"{key} {facts[key]:.6g}" for key in ("min", "max", "mean") if key in facts)
        say(f"{name}: {facts['dtype']}{facts['shape']}  {'  '.join(figures) or 'empty'}")
    if output:
        say(f"saved to {output}")


def _described(array: pipeline.Array) -> dict[str, Any]:
    """What is said of an output; of one without elements, its type."""
    values = numbers(array)
    facts = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if not values.size:
        return facts
    mean = values.mean(dtype=np.float64).item()
    return {**facts, "min": values.min().item(), "max": values.max().item(), "mean": mean}
