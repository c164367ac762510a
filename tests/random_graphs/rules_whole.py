"""Why compiled code may differ from the interpreter on a whole graph; all else has equal bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from ml_dtypes import finfo

import compiler
from compiler.errors import ConfigError, LoweringError, UnsupportedError
from compiler.ir.expr import Binding, Function, IRModule, TensorType, Var, operands
from compiler.op.accumulate import staged
from compiler.transform.portability import unportable
from datatypes.formats import get
from random_graphs.comparing import identical, listed, stored
from random_graphs.numbers_drawn import is_float
from random_graphs.oracle import Array
from random_graphs.whole import WholeDifference, imported


def _unnumbered(d: WholeDifference) -> bool:
    """cumsum in a format that rounds stochastically is refused in one sentence: its draws have no
    numbers that would be the same in every order. Checked: the format, and the sentence."""
    return (
        isinstance(d.error, UnsupportedError)
        and d.setting.scheme is None
        and get(d.setting.format).rounding == "stochastic"
        and "does not number its roundings" in str(d.error)
    )


def _too_exact(d: WholeDifference) -> bool:
    """Exact sums of a format whose products have too many parts are refused in one sentence.
    Checked: exact sums were asked for, and the sentence."""
    return (
        isinstance(d.error, LoweringError)
        and d.setting.accumulate == "exact"
        and "need more than 256 products of parts" in str(d.error)
    )


def _exact_unnumbered(d: WholeDifference) -> bool:
    """Exact sums that float64 does not hold, inside an operator that is taken apart for them
    (softmax, means, normalization), are refused in one sentence where the format rounds
    stochastically: its draws have numbers that are those of one operator. Checked: exact sums were
    asked for, the format, and the sentence."""
    return (
        isinstance(d.error, LoweringError)
        and d.setting.accumulate == "exact"
        and get(d.setting.format).rounding == "stochastic"
        and "which rounds stochastically, need more than 53 bits" in str(d.error)
    )


def _open_terms(d: WholeDifference) -> bool:
    """Sums in pairs of so many terms as only data say, and sums in parts along several open axes,
    are refused in one sentence. Checked: such sums were asked for, and the sentence."""
    return (
        isinstance(d.error, LoweringError)
        and staged(d.setting.accumulate) is not None
        and "; give the model fixed shapes" in str(d.error)
    )


def _too_wide(d: WholeDifference) -> bool:
    """Plans whose sums could overflow an int32 accumulator are refused in one sentence. Checked: a
    scheme, and the sentence."""
    return (
        isinstance(d.error, ConfigError)
        and d.setting.scheme is not None
        and "could overflow an int32 accumulator" in str(d.error)
    )


# ---- contractions of built-in floats -------------------------------------------------------------
def _free_order(d: WholeDifference) -> bool:
    """Contractions of built-in floats are formed in an order that suits the target: their last
    digits are the target's, and what follows from them.

    Checked: `unportable` names values of the module; without these (they are inputs, with the
    interpreter's numbers) compiled code has equal bits in everything; and each of them alone is as
    close to the interpreter's as its length allows.
    """
    if d.error is not None:
        return False
    mod = d.setting.changed(imported(d.graph, d.outputs))
    free = set(unportable(mod))
    feeds = {p.name: stored(d.graph.arrays[p.name]) for p in mod.main.params}
    main = mod.main
    named = [b for b in main.bindings if b.var.name in free]
    if not free or {b.var.name for b in named} != free:  # some are in functions of their own
        return False
    plain = [b.var for b in main.bindings if isinstance(b.var.type, TensorType)]
    whole = replace(main, results=tuple(plain))
    with np.errstate(all="ignore"):
        found = listed(compiler.evaluate(mod.with_function("main", whole), feeds))
    values = dict(feeds) | {v.name: a for v, a in zip(plain, found, strict=True)}
    rest = replace(
        main,
        params=(*main.params, *(b.var for b in named)),
        bindings=tuple(b for b in main.bindings if b not in named),
    )
    if not _same(d, mod.with_function("main", rest), values, _equal):
        return False
    return all(_same(d, _alone(mod, b), values, _close) for b in named)


def _alone(mod: IRModule, b: Binding) -> IRModule:
    """A module of one binding; what it reads are inputs."""
    read = tuple(dict.fromkeys(a for a in operands(b.value) if isinstance(a, Var)))
    return mod.with_function("main", Function(read, (b,), (b.var,)))


def _same(
    d: WholeDifference,
    mod: IRModule,
    values: dict[str, Array],
    alike: Callable[[Array, Array, list[Array]], bool],
) -> bool:
    """Whether compiled code of a module is like the interpreter on these values."""
    feeds = {p.name: values[p.name] for p in mod.main.params}
    with np.errstate(all="ignore"):
        want = listed(compiler.evaluate(mod, feeds))
    got = listed(d.setting.build(mod)(**feeds))
    read = [a for a in feeds.values() if is_float(a.dtype)]
    return all(alike(a, b, read) for a, b in zip(got, want, strict=True))


def _equal(got: Array, want: Array, _: list[Array]) -> bool:
    return bool(identical(got, want).all())


def _close(got: Array, want: Array, read: list[Array]) -> bool:
    """Within 4 units in the last place for each term, of the largest number here and there; of
    operands that are not all finite or overflow, where both are numbers."""
    if not is_float(want.dtype) or got.shape != want.shape:
        return False
    terms = max((a.size for a in read), default=1)
    with np.errstate(all="ignore"):
        sizes = [np.abs(a[np.isfinite(a)]).max(initial=0) for a in (*read, want)]
        finite = np.isfinite(got) & np.isfinite(want)
        ordinary = all(np.isfinite(a).all() for a in read) and max(sizes) < 1e9
        if ordinary and not finite.all():
            return False
        largest = float(max(*sizes, np.prod([float(s) for s in sizes[:-1]] or [1.0]), 1.0))
        apart = np.abs(np.where(finite, got, 0) - np.where(finite, want, 0))
        return bool((apart <= 4 * terms * float(finfo(want.dtype).eps) * largest).all())


WHOLE: dict[str, Callable[[WholeDifference], bool]] = {
    "stochastic cumsum": _unnumbered,
    "exact sums too long": _too_exact,
    "exact sums of stochastic formats": _exact_unnumbered,
    "sums in parts of open length": _open_terms,
    "integer sums too wide": _too_wide,
    "contractions of built-in floats": _free_order,
}
"""Rules for whole graphs by name; each says why it is no fault, and what it checks."""


def explained_whole(d: WholeDifference) -> str | None:
    """The name of the rule that explains a difference of a whole graph; None if none does."""
    return next((name for name, explains in WHOLE.items() if explains(d)), None)
