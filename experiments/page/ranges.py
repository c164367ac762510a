"""Where the values of a network lie, and how precise a format is there: both by powers of two."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import DtypelabError
from experiments.feeds import Examples, Feed, elements_of, sample_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from compiler.ir.expr import Binding, IRModule

LEAST, MOST = -40, 40
"""Exponents outside these count as the outermost ones."""
DIGITS = 4
"""Significant digits of a share: a page of a hundred networks should not weigh a hundred times."""


@dataclass(frozen=True)
class Histogram:
    """Share of the values v with 2**e <= |v| < 2**(e + 1), for e = first, first + 1, ...

    Zeros count in the total, but have no place. `most` is the largest magnitude.
    """

    name: str
    first: int
    shares: tuple[float, ...]
    most: float


@dataclass(frozen=True)
class Ranges:
    """The values of a network: all weights, all activations, and every tensor for itself."""

    weights: Histogram
    activations: Histogram
    tensors: tuple[Histogram, ...]


def value_ranges(model: Path, x: Examples) -> Ranges:
    """The float32 weights and activations of a network, the latter for the inputs `x` [n, ...].

    Raises:
        DtypelabError: the model cannot be imported.
    """
    from compiler.ir.expr import Constant, operands
    from compiler.transform.preparation import prepare
    from compiler.types.tensor_types import TensorType
    from experiments.zoo import model_batches
    from quantize.calibration.running import Runner

    module = prepare(model_batches.load_for_batch(model, sample_of(x), len(x)))
    floats = [
        b.var
        for b in module.main.bindings
        if isinstance(b.var.type, TensorType) and b.var.type.dtype.is_float
    ]
    given = x.call() if isinstance(x, Feed) else {_input(module): x}
    results = dict(zip(floats, Runner(module, floats, threads=1)(given), strict=True))
    weights, activations = _Counter("all weights"), _Counter("all activations")
    tensors = []
    seen: set[Constant] = set()
    for binding in module.main.bindings:
        own = [a for a in operands(binding.value) if isinstance(a, Constant) and a not in seen]
        seen.update(own)
        constants = [c.data for c in own if c.dtype.is_float]
        if constants:
            weights.add(constants)
            tensors.append(_histogram(f"{_name(binding)}: weights", constants))
        if binding.var in results:
            activations.add([results[binding.var]])
            tensors.append(_histogram(f"{_name(binding)}: result", [results[binding.var]]))
    return Ranges(weights.histogram(), activations.histogram(), tuple(tensors))


def _input(module: IRModule) -> str:
    (only,) = module.main.params
    return only.name


def _name(binding: Binding) -> str:
    from compiler.ir.expr import Call
    from compiler.op.opdef import OpDef

    operator = binding.value.op if isinstance(binding.value, Call) else None
    name = f" ({operator.name})" if isinstance(operator, OpDef) else ""
    return f"{binding.var.name}{name}"


class _Counter:
    """Counts of values at each exponent from LEAST to MOST, array by array."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts = np.zeros(MOST - LEAST + 1)
        self.total = 0
        self.most = 0.0

    def add(self, arrays: Iterable[NDArray[Any]]) -> None:
        for a in arrays:
            self.total += a.size
            finite = np.abs(a[np.isfinite(a) & (a != 0)]).astype(np.float64)
            exponents = np.clip(np.frexp(finite)[1] - 1, LEAST, MOST)
            self.counts += np.bincount(exponents - LEAST, minlength=len(self.counts))
            self.most = max(self.most, float(finite.max(initial=0.0)))

    def histogram(self) -> Histogram:
        filled = np.nonzero(self.counts)[0]
        first, last = (int(filled[0]), int(filled[-1]) + 1) if filled.size else (-LEAST, -LEAST + 1)
        shares = self.counts[first:last] / max(self.total, 1)
        kept = tuple(float(f"{share:.{DIGITS}g}") for share in shares)
        return Histogram(self.name, first + LEAST, kept, float(f"{self.most:.{DIGITS}g}"))


def _histogram(name: str, arrays: Iterable[NDArray[Any]]) -> Histogram:
    counter = _Counter(name)
    counter.add(arrays)
    return counter.histogram()


def ranges_at_hand(
    model: str, dataset: str, model_sha256: str, inputs: int, elements: int
) -> Ranges | str:
    """The ranges of a network for the first inputs of a data set, at most `inputs` and `elements`
    in all; or the reason why there are none: a results file does not hold its models.

    Args:
        model, dataset: as specifications name them.
        model_sha256: what the model must be; empty if that is not known.
    """
    from experiments.data import datasets
    from experiments.files import sha256
    from experiments.zoo import model_files

    try:
        path = model_files.model_file(model)
        if model_sha256 not in ("", sha256(path)):
            return f"{path} has changed since"
        x = datasets.load(dataset).for_model(path).x
        few = max(1, min(inputs, elements // elements_of(x)))
        try:
            return value_ranges(path, x[:few])
        except DtypelabError:
            return value_ranges(path, x[:1])  # it takes one at a time
    except (DtypelabError, OSError) as error:
        return str(error)


def profile(name: str) -> dict[str, Any] | None:
    """{"first": exponent, "bits": significant bits of every binade from there}; None for what is no
    described format (float32, int8, a datatype of functions)."""
    import datatypes
    from datatypes.formats.profile import precision_profile

    if name not in datatypes.list_formats():
        return None
    binades = precision_profile(datatypes.get(name))
    bits = [float(f"{b.bits:.{DIGITS}g}") for b in binades]
    return {"first": binades[0].exponent, "bits": bits} if binades else None
