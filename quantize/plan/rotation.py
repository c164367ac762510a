"""Rotations: residual streams in another basis, in which no channel is larger than the others.

Ashkboos et al., QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs, 2024. Values of a stream
(`quantize.plan.streams`) are multiplied by an orthogonal matrix R: a Hadamard matrix whose rows
have random signs. Layers that make them have R behind their weights, layers that read them its
transpose in front; a root mean square norm between them does not change but for its gain, which
goes into the weights of its readers first. What a layer reads that writes to a stream (gated
values, what attention has mixed) is transformed at run time, by `nn.hadamard`, and its weights
undo that. So are the queries and keys of attention, whose products stay what they are, and its
values, of which the averages are transformed back (`rotate_heads`): a cache is easier to round so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.errors import ConfigError, unknown
from compiler.ir.expr import Atom, Binding, Call, Constant, IRModule, Var, operands, tensor_type
from compiler.ir.inference import infer_value
from compiler.ir.substitution import with_operands
from compiler.op.library import get_op
from compiler.op.nn.hadamard import walsh_matrix
from compiler.types.dtypes import FLOAT32, Array
from quantize.plan.rotated_heads import with_rotated_heads
from quantize.plan.streams import Stream, residual_streams

PALEY = {12: 11, 20: 19, 28: 13}
"""Orders of Hadamard matrices that are no powers of two, and the primes that make them."""
WIDTHS = "2^k, 12 2^k, 20 2^k or 28 2^k"


@dataclass(frozen=True)
class Rotation:
    """Which values of a network are in another basis.

    Attributes:
        seed: of the random signs.
        streams: one value of each residual stream that is rotated: the first that a norm reads.
        online: layers that read values transformed at run time.
        declined: why other streams are not rotated, a sentence each.
        scores: products of queries with keys, both transformed along each head at run time.
        averages: products of probabilities with values, which are transformed at run time, and the
            averages back: those get the name, the product is `<name>_hadamard`.
    """

    seed: int = 0
    streams: tuple[str, ...] = ()
    online: tuple[str, ...] = ()
    declined: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    averages: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing is in another basis."""
        return not (self.streams or self.scores or self.averages)


def with_heads(
    module: IRModule, rotation: Rotation, scores: Sequence[str], averages: Sequence[str]
) -> Rotation:
    """The rotation with that of attention, of these products of a prepared module.

    Raises:
        ConfigError: there is none, or a head's size is no power of two.
    """
    made = {b.var.name: b.value for b in module.main.bindings}
    for name in (*scores, *averages):
        value = made[name]
        assert isinstance(value, Call)
        n = tensor_type(value.args[0 if name in scores else 1]).shape[-1]
        if not isinstance(n, int) or not _power(n):
            raise ConfigError(
                f"rotate_heads=True: the heads of {name!r} have {n} channels, and nn.hadamard "
                "transforms powers of two"
            )
    if not scores and not averages:
        raise ConfigError("rotate_heads=True finds no attention: no softmax is of or in a product")
    return replace(rotation, scores=tuple(scores), averages=tuple(averages))


def rotation_of(module: IRModule, seed: int) -> Rotation:
    """The rotation of all that can be rotated in a prepared module.

    Raises:
        ConfigError: nothing can; it says why.
    """
    streams, online, declined = [], [], []
    for found in residual_streams(module):
        if isinstance(found, str):
            declined.append(found)
        elif not hadamard_width(found.width):
            declined.append(
                f"{_name(found)!r} has {found.width} channels, but there are Hadamard matrices for "
                f"{WIDTHS}"
            )
        else:
            streams.append(_name(found))
            online += [v.name for v in found.makers if _transformed(module, v, found)]
    if not streams:
        why = "; ".join(declined) or "it has no root mean square norm"
        raise ConfigError(f"rotate=True finds no residual stream that can be rotated: {why}")
    order = [b.var.name for b in module.main.bindings if b.var.name in set(online)]
    return Rotation(seed, tuple(streams), tuple(order), tuple(declined))


def rotated(module: IRModule, rotation: Rotation) -> IRModule:
    """A prepared module in the bases of `rotation`. All names stay; `<layer>_hadamard` is what a
    layer reads that has been transformed at run time, or the product of attention before it is
    transformed back.

    Raises:
        ConfigError: the module has no such streams or layers.
    """
    found = {_name(s): s for s in residual_streams(module) if isinstance(s, Stream)}
    weights = _Weights(module)
    for k, name in enumerate(rotation.streams):
        if name not in found or not hadamard_width(found[name].width):
            raise ConfigError(
                f"the plan was made for another model: {unknown('residual stream', name, found)}"
            )
        weights.rotate(found[name], random_hadamard(found[name].width, rotation.seed + k))
    for name in rotation.online:
        weights.transform(name)
    return with_rotated_heads(weights.module(), rotation.scores, rotation.averages)


def _name(stream: Stream) -> str:
    return next(iter(stream.values)).name


def _transformed(module: IRModule, layer: Var, stream: Stream) -> bool:
    """Whether what a layer reads is to be transformed at run time: it is of no stream, and a power
    of two long."""
    call = next(b.value for b in module.main.bindings if b.var == layer)
    assert isinstance(call, Call)
    n = tensor_type(call.args[0]).shape[-1]
    power = isinstance(n, int) and n > 1 and n & (n - 1) == 0
    return power and layer not in stream.readers


# ---- matrices ------------------------------------------------------------------------------------
def hadamard_width(n: int) -> bool:
    """Whether `hadamard` has a matrix of this order."""
    odd = n & -n
    return n > 0 and (n == odd or any(n % m == 0 and _power(n // m) for m in PALEY))


def _power(n: int) -> bool:
    return n & (n - 1) == 0


def hadamard(n: int) -> Array:
    """float64 [n, n]: a Hadamard matrix divided by sqrt(n), which is orthogonal.

    That of Walsh, or its product with one of Paley (On Orthogonal Matrices, 1933).
    """
    if _power(n):
        return walsh_matrix(n)
    m = next(m for m in PALEY if n % m == 0 and _power(n // m))
    return np.asarray(np.kron(walsh_matrix(n // m), _paley(m) / np.sqrt(m)))


def _paley(m: int) -> Array:
    """[m, m] of 1 and -1 with orthogonal rows."""
    q = PALEY[m]
    squares = {k * k % q for k in range(1, q)}
    character = np.asarray([0.0] + [1.0 if k in squares else -1.0 for k in range(1, q)])
    differences = character[(np.arange(q)[:, None] - np.arange(q)) % q]
    if q % 4 == 3:
        skew = np.block([[np.zeros((1, 1)), np.ones((1, q))], [-np.ones((q, 1)), differences]])
        return np.asarray(skew + np.eye(m))
    conference = np.block([[np.zeros((1, 1)), np.ones((1, q))], [np.ones((q, 1)), differences]])
    one = np.kron(conference, [[1.0, 1.0], [1.0, -1.0]])
    return np.asarray(one + np.kron(np.eye(q + 1), [[1.0, -1.0], [-1.0, -1.0]]))


def random_hadamard(n: int, seed: int) -> Array:
    """`hadamard(n)` with signs of its rows by chance."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], n)
    return np.asarray(signs[:, None] * hadamard(n))


# ---- weights -------------------------------------------------------------------------------------
class _Weights:
    """The constants of a module, which change."""

    def __init__(self, module: IRModule):
        self.source = module
        self.calls = {b.var: b.value for b in module.main.bindings if isinstance(b.value, Call)}
        self.named = {v.name: v for v in self.calls}
        self.online: set[Var] = set()

    def rotate(self, stream: Stream, r: Array) -> None:
        """Put a stream in the basis `r`: what was x is x r."""
        gains = {v: self._data(v, 1) for v in stream.norms}
        for v, norm in stream.readers.items():
            gain = 1.0 if norm is None else gains[norm]
            self._set(v, {1: (self._data(v, 1) * gain) @ r})
        for v in stream.norms:
            self._set(v, {1: np.ones_like(gains[v])})
        for v in stream.makers:
            biases = {k: self._data(v, k) @ r for k in range(2, len(self.calls[v].args))}
            self._set(v, {1: r.T @ self._data(v, 1), **biases})
        for v in stream.tables:
            self._set(v, {0: self._data(v, 0) @ r})
        for v, k in stream.constants:
            self._set(v, {k: self._data(v, k) @ r})

    def transform(self, name: str) -> None:
        """Let a layer read its data transformed at run time."""
        v = self.named.get(name)
        weight = self.calls[v].args[1] if v is not None and len(self.calls[v].args) > 1 else None
        if v is None or not isinstance(weight, Constant) or not _power(weight.data.shape[-1]):
            raise ConfigError(
                f"the plan was made for another model: {unknown('layer', name, self.named)}"
            )
        self._set(v, {1: self._data(v, 1) @ walsh_matrix(weight.data.shape[-1])})
        self.online.add(v)

    def _data(self, v: Var, k: int) -> Array:
        a = self.calls[v].args[k]
        assert isinstance(a, Constant)
        return np.asarray(a.data, np.float64)

    def _set(self, v: Var, arrays: Mapping[int, Array]) -> None:
        call = self.calls[v]
        args: list[Atom] = [
            Constant.of(arrays[k].astype(np.float32), FLOAT32) if k in arrays else a
            for k, a in enumerate(call.args)
        ]
        self.calls[v] = Call(call.op, tuple(args), call.attrs)

    def module(self) -> IRModule:
        """The module with the constants as they are now."""
        f = self.source.main
        bindings: list[Binding] = []
        for b in f.bindings:
            value = self.calls.get(b.var, b.value)
            if b.var in self.online and isinstance(value, Call):
                op = get_op("nn.hadamard")
                transform = Call(op, (value.args[0],), op.make_attrs())
                new = Var(f"{b.var.name}_hadamard", infer_value(transform))
                bindings.append(Binding(new, transform, b.origins))
                value = with_operands(value, [new, *list(operands(value))[1:]])
            bindings.append(Binding(b.var, value, b.origins))
        return self.source.with_function("main", f.with_body(bindings, f.results))
