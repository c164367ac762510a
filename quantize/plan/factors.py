"""Factors: channels of a value divided, and the weights that read them multiplied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.errors import ConfigError, unknown
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    IRModule,
    Var,
    operands,
    tensor_type,
    uses,
)
from compiler.ir.inference import infer_value
from compiler.ir.substitution import with_operands
from compiler.op.library import get_op
from compiler.op.opdef import OpDef
from compiler.types.dtypes import FLOAT32, Array
from quantize.plan.call_facts import Form, contraction, contraction_of, form


@dataclass(frozen=True)
class Factors:
    """How a value is rescaled.

    Attributes:
        readers: the weighted nodes whose weights are multiplied; all others read the value as it
            was.
        divisors: one positive number per channel, held exactly by float32.
    """

    readers: tuple[str, ...]
    divisors: tuple[float, ...]

    @property
    def array(self) -> Array:
        """The divisors as float64 [C]."""
        return np.asarray(self.divisors, np.float64)


def rescaled(module: IRModule, factors: Mapping[str, Factors]) -> IRModule:
    """A prepared module with `factors` (value name -> how it is rescaled) in its constants.

    The value is divided where it is made: in the weights of a layer, in a layer norm's gain, in a
    vector that is multiplied or added, back through operators that are equivariant. Where that is
    not possible, or something else reads the value too, a multiplication `<value>_rescaled` is put
    before the readers. All names stay.

    Raises:
        ConfigError: the module has no such value or readers, or another number of channels.
    """
    if not factors:
        return module
    network = Network(module)
    for name, given in factors.items():
        network.rescale(name, given)
    return network.module()


class Network:
    """The main function of a module, with constants that change."""

    def __init__(self, module: IRModule):
        self.source = module
        self.calls = {b.var: b.value for b in module.main.bindings if isinstance(b.value, Call)}
        self.named = {v.name: v for v in (*module.main.params, *self.calls)}
        self.uses = uses(module.main)
        self.inserted: dict[Var, tuple[Array, tuple[Var, ...]]] = {}

    def module(self) -> IRModule:
        """The module with the constants as they are now."""
        f = self.source.main
        read: dict[Var, dict[Var, Var]] = {}
        bindings: list[Binding] = []
        for p in f.params:
            self._insert(p, (), bindings, read)
        for b in f.bindings:
            value = self.calls.get(b.var, b.value)
            changed = read.get(b.var, {})
            if changed:
                found: list[Atom] = [
                    changed.get(a, a) if isinstance(a, Var) else a for a in operands(value)
                ]
                value = with_operands(value, found)
            bindings.append(Binding(b.var, value, b.origins))
            self._insert(b.var, b.origins, bindings, read)
        return self.source.with_function("main", f.with_body(bindings, f.results))

    def _insert(self, v: Var, origins: tuple[str, ...], bindings: list[Binding], read: Any) -> None:
        if v not in self.inserted:
            return
        divisors, readers = self.inserted[v]
        op = get_op("multiply")
        inverse = Constant.of((1 / self._along(v, divisors)).astype(np.float32), FLOAT32)
        value = Call(op, (v, inverse), op.make_attrs())
        new = Var(f"{v.name}_rescaled", infer_value(value))
        bindings.append(Binding(new, value, origins))
        for r in readers:
            read.setdefault(r, {})[v] = new

    # ---- one value -------------------------------------------------------------------------------
    def rescale(self, name: str, factors: Factors) -> None:
        """Divide the value called `name` for some of its readers."""
        value = self._known("value", name)
        readers = [self._known("node", r) for r in factors.readers]
        divisors = factors.array
        for r in readers:
            call = self.calls.get(r)
            if call is None or not reads(call, value):
                raise ConfigError(f"the plan rescales {name!r} for {r.name!r}, which does not fit")
        if channels(value) != len(divisors):
            raise ConfigError(f"{name!r} has {channels(value)} channels, not {len(divisors)}")
        for r in readers:
            self._multiply(r, divisors)
        if {b.var if b else None for b in self.uses[value]} == set(readers) and self.divides(value):
            self._divide(value, divisors)
        else:
            self.inserted[value] = divisors, tuple(readers)

    def _known(self, what: str, name: str) -> Var:
        if name not in self.named:
            raise ConfigError(
                f"the plan was made for another model: {unknown(what, name, self.named)}"
            )
        return self.named[name]

    def _multiply(self, reader: Var, factors: Array) -> None:
        """Multiply the weights that read each channel."""
        call = self.calls[reader]
        self._replace(reader, {1: constant(call.args[1]) * per_weight(call, factors)})

    def maker(self, v: Var) -> Var | None:
        """The layer whose results are `v`, up to equivariant operators that nothing else reads."""
        call = self.calls.get(v)
        if call is None or (is_layer(call) and not self.divides(v)):
            return None
        if is_layer(call):
            return v
        (x, *_) = call.args
        passes = equivariant(call) and isinstance(x, Var) and len(self.uses[x]) == 1
        return self.maker(x) if passes and isinstance(x, Var) else None

    def divides(self, v: Var) -> bool:
        """Whether `_divide` can divide a value, not looking at who reads it."""
        call = self.calls.get(v)
        if call is None:
            return False
        x, *rest = call.args
        last = channel_axis(v) == tensor_type(v).rank - 1
        fixed = all(isinstance(a, Constant) for a in rest)
        if is_layer(call):
            return fixed and contraction(call).channels % tensor_type(v).rank == channel_axis(v)
        vectors = fixed and last and all(tensor_type(a).shape == (channels(v),) for a in rest)
        if form(call) in (Form.MULTIPLY, Form.LAYER_NORM):
            return vectors
        passes = equivariant(call) or (form(call) == Form.ADD and vectors)
        return passes and isinstance(x, Var) and len(self.uses[x]) == 1 and self.divides(x)

    def _divide(self, v: Var, divisors: Array) -> None:
        call = self.calls[v]
        if not equivariant(call):
            arrays = {k: constant(a) for k, a in enumerate(call.args[1:], 1)}
            self._replace(
                v, {k: a / divisors.reshape(-1, *[1] * (a.ndim - 1)) for k, a in arrays.items()}
            )
        if equivariant(call) or form(call) == Form.ADD:
            assert isinstance(call.args[0], Var)
            self._divide(call.args[0], divisors)

    def _replace(self, v: Var, arrays: Mapping[int, Array]) -> None:
        call = self.calls[v]
        args = [
            Constant.of(arrays[k].astype(np.float32), FLOAT32) if k in arrays else a
            for k, a in enumerate(call.args)
        ]
        self.calls[v] = Call(call.op, tuple(args), call.attrs)

    def _along(self, v: Var, values: Array) -> Array:
        return values.reshape(-1, *[1] * (tensor_type(v).rank - 1 - channel_axis(v)))


def per_weight(call: Call, factors: Array) -> Array:
    """The factor of the channel that each weight of a layer reads, broadcastable to the weights."""
    shape = constant(call.args[1]).shape
    groups = getattr(call.attrs, "groups", 1)
    each = factors.reshape(groups, 1, -1).repeat(shape[0] // groups, axis=1)
    return each.reshape(shape[0], -1, *[1] * (len(shape) - 2))


def constant(a: Atom) -> Array:
    """The data of a constant, as float64."""
    assert isinstance(a, Constant)
    return np.asarray(a.data, np.float64)


def is_layer(call: Call) -> bool:
    """Whether a call has weights that a factor can be put into."""
    axes = contraction_of(call)
    return axes is not None and axes.by_rows


def equivariant(call: Call) -> bool:
    """Whether dividing a call's operand by channel, by anything positive, divides its result."""
    if form(call) == Form.PAD:
        a = call.attrs
        return (a.mode != "constant" or a.value == 0) and tuple(a.pad_width[1]) == (0, 0)
    return isinstance(call.op, OpDef) and call.op.homogeneous


def channel_axis(v: Var) -> int:
    """The axis of a value's channels: 1 of images [N, C, H, W], the last of anything else."""
    rank = tensor_type(v).rank
    return 1 if rank == 4 else rank - 1


def channels(v: Var) -> Any:
    """How many channels a value has; a symbol if that is open."""
    return tensor_type(v).shape[channel_axis(v)] if tensor_type(v).rank else 1


def reads(call: Call, value: Var) -> bool:
    """Whether a call is a layer that multiplies the channels of `value` with constant weights."""
    rank = tensor_type(value).rank
    return (
        is_layer(call)
        and call.args[0] == value
        and contraction(call).data % rank == channel_axis(value)
        and all(isinstance(a, Constant) for a in call.args[1:])
    )


def rounded(divisors: Array) -> tuple[float, ...]:
    """Divisors rounded to float32 and kept between 1e-4 and 1e4, as Python numbers."""
    return tuple(float(d) for d in np.clip(divisors, 1e-4, 1e4).astype(np.float32))
