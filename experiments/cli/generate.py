"""dtypelab generate."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from .common import (
    format_options,
    import_engine_option,
    json_option,
    model_argument,
    print_json,
    say,
    say_text,
    target_options,
)


@click.command(short_help="Continue a text with a language model.")
@model_argument
@click.option("--prompt", metavar="TEXT", help="What to continue; needs a tokenizer.")
@click.option("--ids", metavar="I,J,...", help="What to continue, as ids.")
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    metavar="N",
    help="How many ids to write.",
)
@click.option(
    "--temperature",
    type=float,
    default=0.0,
    show_default=True,
    metavar="T",
    help="0 takes the likeliest id; others choose by chance.",
)
@click.option("--top-k", type=int, metavar="K", help="Choose among the K likeliest ids.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Of the chances.",
)
@click.option("--tokenizer", type=click.Path(path_type=Path), metavar="FILE.json")
@click.option("--plan", type=click.Path(path_type=Path), metavar="P.json", help="Quantize by it.")
@click.option(
    "--slide", is_flag=True, help="Go on from the last half when all positions are used up."
)
@click.option(
    "--save", type=click.Path(path_type=Path), metavar="FILE", help="Keep the compiled decoder."
)
@format_options
@target_options
@import_engine_option
@json_option
def generate(
    model: str,
    prompt: str | None,
    ids: str | None,
    tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    tokenizer: Path | None,
    plan: Path | None,
    slide: bool,
    save: Path | None,
    dtype: str,
    accumulate: str | None,
    lowering: str | None,
    target: str,
    threads: int,
    as_json: bool,
) -> None:
    """Continue a prompt with a decoder, in any number format or by a quantization plan.

    MODEL takes input_ids and past_key_values.L.key and .value, and gives logits and present.L.key
    and .value; or it is a file that --save wrote. The same seed gives the same ids, whatever the
    number of threads. Without a tokenizer, ids are printed. How fast it was is said on stderr.

    Example: dtypelab generate stdlib_lm --prompt import --dtype bfloat16
    """
    from experiments.generation import generating

    if (prompt is None) == (ids is None):
        raise click.UsageError("give either --prompt or --ids")
    found = generating.generate(
        model,
        prompt if prompt is not None else _numbers(ids or ""),
        tokens,
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        dtype=dtype,
        accumulate=accumulate,
        lowering=lowering,
        plan=plan,
        tokenizer=tokenizer,
        slide=slide,
        target=target,
        threads=threads,
        save=save,
    )
    if as_json:
        print_json({"model": model, "dtype": dtype, "plan": str(plan or ""), **asdict(found)})
        return
    say_text((prompt or "") + found.text if found.text else str([*found.ids]))
    rate = f", {found.tokens_per_s:.1f} a second" if len(found.ids) > 1 else ""
    say(f"{len(found.ids)} ids{rate}; keys and values: {found.cache}", err=True)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--ids {text!r} is not ids such as 12,7,300") from None
