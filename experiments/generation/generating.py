"""`experiments.generate`: a decoder in a number format or a plan continues a prompt."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from compiler.errors import ConfigError, InputError, LoweringError, UnsupportedError
from experiments import zoo
from experiments.systems import number_systems, pipeline, schemes
from experiments.zoo import model_files
from experiments.zoo.language import tokenizer as tokenizers

from . import decoders
from .readers import FedBack, InPlace, Reader
from .sampling import Sampling, check_number

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule
    from quantize.plan.plan import Plan

#: Shipped models, and the tokenizers in their folder.
TOKENIZERS = {"stdlib_lm": "stdlib_text.tokenizer.json"}


@dataclass(frozen=True)
class Generated:
    """What a decoder wrote after `prompt_ids`: `ids`, and their `text` (empty without a tokenizer).

    `prompt_s` are the seconds until the first of them: of reading the prompt, and of compiling what
    is left to compile; `tokens_per_s` is the rate of those after it, NaN if there are none. By
    `cache`, keys and values are "in place", or "fed back" where the model does not let them stay,
    or there are "none" and all ids are read for every new one.
    """

    ids: tuple[int, ...]
    text: str
    prompt_ids: tuple[int, ...]
    tokens_per_s: float
    prompt_s: float
    cache: str


def generate(
    model: str | os.PathLike[str],
    prompt: str | Sequence[int],
    tokens: int = 32,
    *,
    seed: int = 0,
    temperature: float = 0.0,
    top_k: int | None = None,
    dtype: str = "float32",
    accumulate: str | None = None,
    lowering: str | None = None,
    plan: str | os.PathLike[str] | Plan | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    slide: bool = False,
    target: str = "llvm",
    threads: int = 1,
    save: str | os.PathLike[str] | None = None,
) -> Generated:
    """Continue a prompt, one id after the other.

    Args:
        model: a shipped name (`stdlib_lm`), the path of an ONNX decoder (see `decoders`), or of a
            compiled one that `Decoder.save` wrote.
        prompt: ids; or text for a tokenizer, before which its start id is put if it has one.
        tokens: how many ids to write.
        seed: of the chances, where the temperature is not 0.
        temperature: 0 takes the likeliest id; see `Sampling`.
        top_k: ids that may be chosen, the likeliest ones; None: all.
        dtype: number format of the whole network.
        accumulate: how sums of the format are formed.
        lowering: how the format is computed.
        plan: or a quantization plan, or its JSON file.
        tokenizer: JSON file; of shipped models their own.
        slide: where the model's positions are used up, begin again with the last half of the ids
            that it has read, instead of refusing.
        target: of the compiler.
        threads: of the executable; the ids do not depend on it.
        save: file for the compiled decoder, which can be the model of later calls.

    Raises:
        ConfigError: the model is no decoder, there is no tokenizer for text, settings contradict
            each other, or the model has not so many positions.
        InputError: an id that the model does not have.
        DtypelabError: the model cannot be imported, retyped, quantized or compiled.
    """
    check_number("tokens", tokens)
    if tokens < 1:
        raise ConfigError(f"tokens must be at least 1, not {tokens}")
    if plan is not None and (dtype != "float32" or accumulate or lowering):
        raise ConfigError("give either a number format or a plan: the plan has its own")
    sampling = Sampling(temperature, top_k, seed)
    path = model_files.model_file(os.fspath(model))
    words = _tokenizer(os.fspath(model), tokenizer, text=isinstance(prompt, str))
    asked = _Asked(dtype, accumulate, lowering, plan, target, threads)
    reading = _saved(path, asked) if decoders.is_saved(path) else _imported(path, asked)
    ids = _ids(prompt, words, np.iinfo(reading.decoder.dtypes[decoders.IDS]).max)
    most = reading.most
    _check_length(path, len(ids), tokens, most, slide)
    reader = reading.reader(len(ids) + tokens if most is None else most)
    if save is not None:
        if not isinstance(reader, InPlace):
            raise ConfigError(f"{path.name} keeps no caches in place: there is nothing to save")
        reader.session.decoder.save(save)
    chances, began = sampling.chances(), time.perf_counter()
    found = [sampling.choose(reader.read(ids)[-1], chances)]
    first = time.perf_counter()
    while len(found) < tokens:
        fresh = found[-1:]
        if most is not None and len(reader.seen) == most:
            fresh = [*reader.seen, *fresh][-max(1, most // 2) :]
            reader.forget()
        found.append(sampling.choose(reader.read(fresh)[-1], chances))
    rate = (tokens - 1) / (time.perf_counter() - first) if tokens > 1 else float("nan")
    text = words.decode(found) if words else ""
    return Generated(tuple(found), text, tuple(ids), rate, first - began, reader.cache)


@dataclass(frozen=True)
class _Asked:
    """How a decoder is to be put and compiled; see `generate`."""

    dtype: str
    accumulate: str | None
    lowering: str | None
    plan: str | os.PathLike[str] | Plan | None
    target: str
    threads: int


_PLAIN = _Asked("float32", None, None, None, "llvm", 1)


@dataclass(frozen=True)
class _Reading:
    """A decoder that can be compiled: its interface, how many positions it has, if it says so, and
    what gives a reader with room for so many."""

    decoder: decoders.Interface
    most: int | None
    reader: Callable[[int], Reader]


def _saved(path: Path, asked: _Asked) -> _Reading:
    """A decoder that was compiled and saved.

    Raises:
        ConfigError: something is asked of it that was decided when it was compiled.
    """
    import compiler

    for f in fields(_Asked):
        if getattr(asked, f.name) != getattr(_PLAIN, f.name):
            raise ConfigError(
                f"{path.name} is a compiled decoder, whose number system, target and threads are "
                f"decided: leave out {f.name}"
            )
    compiled = compiler.load_decoder(path)
    decoder = decoders.saved_interface(path, compiled)
    # A format that may not mask reads id by id; the bits of others are the same so.
    at_once = not compiled.executable.lowerings
    return _Reading(
        decoder, decoders.saved_positions(compiled),
        lambda capacity: InPlace(compiled, decoder, capacity, at_once),
    )  # fmt: skip


def _imported(path: Path, asked: _Asked) -> _Reading:
    """A model, in the number system that is asked for."""
    scheme = schemes.number_format(asked.dtype, asked.accumulate, asked.lowering)
    decoder = decoders.interface(path)
    module = model_files.load_model(path, decoder.shapes)
    decoders.check_scores(path, module)
    plan = _plan(asked.plan)
    at_once = all(map(number_systems.masks, _of_softmax(asked.dtype, plan)))

    def reader(capacity: int) -> Reader:
        put = _in_scheme(module, scheme, plan)
        return _reader(put, scheme, decoder, capacity, at_once, asked.target, asked.threads)

    return _Reading(decoder, decoders.positions(module), reader)


def _reader(
    module: IRModule,
    scheme: schemes.Scheme,
    decoder: decoders.Interface,
    capacity: int,
    at_once: bool,
    target: str,
    threads: int,
) -> Reader:
    """The decoder compiled with its keys and values in place, where it can be; the bits are the
    same without."""
    import compiler

    if decoder.pasts:
        lowering = cast("str | None", scheme.option("lowering"))
        try:
            compiled = compiler.decoder(module, target, threads, lowering)
            return InPlace(compiled, decoder, capacity, at_once)
        except (UnsupportedError, LoweringError):
            pass  # what is not about keys and values is said again below
    return FedBack(pipeline.build(module, scheme, target, threads), decoder, at_once)


def _tokenizer(
    model: str, given: str | os.PathLike[str] | None, text: bool
) -> tokenizers.Tokenizer | None:
    if given is None and model in TOKENIZERS:
        given = zoo.FOLDER / TOKENIZERS[model]
    if given is None and text:
        raise ConfigError(f"no tokenizer is known for {model}: give its file, or the prompt as ids")
    return None if given is None else tokenizers.read(given)


def _ids(prompt: str | Sequence[int], words: tokenizers.Tokenizer | None, most: int) -> list[int]:
    if isinstance(prompt, str):
        assert words is not None
        start = [] if words.start is None else [words.start]
        ids = [*start, *words.encode(prompt)]
    else:
        try:
            ids = [operator.index(one) for one in prompt]
        except TypeError as error:
            raise InputError(f"the prompt is neither text nor ids: {error}") from None
    if not ids:
        raise ConfigError("the prompt is empty: give at least one id, or text")
    if bad := [one for one in ids if not 0 <= one <= most]:
        raise InputError(f"{bad[0]} is no id: ids count from 0, and none is beyond {most}")
    return ids


def _plan(plan: str | os.PathLike[str] | Plan | None) -> Plan | None:
    if not isinstance(plan, str | os.PathLike):
        return plan
    import quantize

    return quantize.Plan.from_json(Path(plan))


def _in_scheme(module: IRModule, scheme: schemes.Scheme, plan: Plan | None) -> IRModule:
    if plan is None:
        return pipeline.retype(module, scheme)
    import quantize

    return quantize.realize(module, plan)


def _of_softmax(dtype: str, plan: Plan | None) -> set[str]:
    """The formats that softmax may be computed in."""
    if plan is None:
        return {dtype}
    from quantize.config.overrides import overrides_of

    given = [dict(fields) for _, fields in overrides_of(plan.config.overrides)]
    named = [fields["softmax_dtype"] for fields in given if "softmax_dtype" in fields]
    return {plan.config.softmax_dtype, *named} - {""}


def _check_length(path: Path, given: int, tokens: int, most: int | None, slide: bool) -> None:
    if slide and most is None:
        raise ConfigError(f"{path.name} does not say how many positions it has, so slide cannot be")
    read = given if slide else given + tokens - 1
    if most is not None and read > most:
        more = "" if slide else f" and {tokens} more ids"
        hint = "a shorter prompt" if given > most else "fewer tokens, or slide"
        raise ConfigError(
            f"a prompt of {given} ids{more} need {read} positions, but {path.name} has {most}: "
            f"give {hint}"
        )
