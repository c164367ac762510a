"""change_dtype: a module in another number format, or each of its layers in its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from compiler.boundary.data import holds_data
from compiler.errors import DtypelabError, TypeInferenceError, UnsupportedError, unknown
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Value,
    Var,
    atom_type,
    names_in,
    nested,
    operands,
)
from compiler.ir.function_calls import is_callee
from compiler.ir.inference import infer_value
from compiler.ir.substitution import with_nested, with_operands
from compiler.op.accumulate import CERTIFIED, check_accumulator, is_mode, unknown_mode
from compiler.op.accumulator import Accumulator, accumulator, of_table
from compiler.op.opdef import OpDef
from compiler.types.dtypes import FLOAT32, Array, DType, custom, span
from compiler.types.names import unique
from compiler.types.tensor_types import TensorType, TupleType, Type
from datatypes.custom.defining import define
from datatypes.formats import Format, get
from datatypes.retype.control_flow import (
    is_control,
    retyped_control,
    speaks_of,
    with_dtype,
    with_dtype_defined,
)

Target = str | DType | Format
Sums = str | Format | Mapping[str, Any] | Accumulator


@dataclass(frozen=True)
class Layer:
    """What a binding is computed in, and how its sums are formed."""

    dtype: DType
    accumulate: str


Choice = Callable[[Binding], Layer]


def change_dtype(
    mod: IRModule,
    src: str | DType | Mapping[str, Target | tuple[Target, Sums]],
    dst: Target | None = None,
    boundary: bool = True,
    accumulate: Sums = "sequential",
) -> IRModule:
    """The module with every tensor of dtype `src` in `dst` instead, constants included.

    The module is prepared first (`compiler.transform.preparation`): batch normalization is folded
    into weights in the original dtype, then weights are encoded, rounding once. Values keep their
    names and origins; integer tensors stay as they are, and so do the operators that quantize to
    them, dequantize and requantize (`OpDef.in_float32`): casts surround these.

    In a format that rounds stochastically, the random bits of every product, sum, difference,
    quotient and conversion are a hash of the format's seed, the value's name, the position in it
    and the number of roundings before. Weights and other constants are rounded to nearest.

    Args:
        mod: a module that has not been fused.
        src: dtype to replace, usually `float32`; `float16` or `bfloat16`, with `float32` as dst, of
            a model in shorter floats, which can be quantized then. Or a mapping from patterns to
            formats (`{"conv*": "posit8_es0", "*": "bfloat16"}`): each float32 value is computed in
            the format of the first pattern that matches its name or one of its origins (`*`, `?`
            and `[...]` as in file names), else in float32. Operands are cast where formats meet. A
            pair (format, accumulation) chooses both.
        dst: `custom[NAME]BITS`, or a format or its name; left out with a mapping.
        boundary: keep the dtypes of inputs and outputs, converting them with casts. Without it they
            are of `dst` too, as storage integers; not with a mapping.
        accumulate: how sums are formed, one of `compiler.op.accumulate.MODES`, a format or its name
            (acc = rnd(acc + x * w) in it), or a description of an accumulator, as a mapping or
            in TOML (`compiler.op.accumulator`): all sums that add up more than two terms. With
            dst `float32` the network stays in float32, but for these.
            `certified`: the exact sum, as an accumulator gives it that is as wide as the layer's
            certificate says (`quantize.certify`), and never overflows.
            `sequential`: every product and every sum is rounded. Operators that are
            not sequential print it. What an imported node adds up by several operators is one sum
            then (`compiler.transform.gather_sums`).

    Raises:
        DtypelabError: no such dtype or format, a format that only stores values, or a pattern that
            decides nothing.
        UnsupportedError: an unknown accumulation, or one that the datatype does not have.
            Or a mapping, or a function that calls `main`, together with control flow.
        TypeInferenceError: an operator of the model is not defined for custom dtypes; names it.
        LoweringError: the datatype cannot encode the constants.
    """
    from compiler.transform.preparation import prepare

    prepared = prepare(mod)
    if isinstance(src, Mapping):
        if dst is not None or not boundary:
            raise DtypelabError("a mapping names the formats itself, and keeps the boundary")
        source = inputs = FLOAT32
        choose = _by_pattern(prepared, src, accumulate)
    else:
        if dst is None:
            raise DtypelabError("change_dtype needs the dtype to change to")
        source, inputs = DType.parse(src), _target(dst)
        layer = _layer(inputs, accumulate)
        if source == inputs and layer.accumulate == "sequential":
            raise DtypelabError(f"the module would stay as it is: both dtypes are {source}")

        def choose(b: Binding) -> Layer:
            return layer

    if boundary:
        for a in (*prepared.main.params, *prepared.main.results):
            t = atom_type(a)
            if holds_data(t) and speaks_of(t, source, prepared.types):
                raise UnsupportedError(
                    f"{a!r} of type {t} holds {source}, which nothing converts in data at the "
                    "boundary: take and return tensors, or give boundary=False"
                )
    retyped = {
        # What other functions take and give stays inside the module.
        name: _Retype(source, choose, inputs, boundary and name == "main").whole(f)
        if isinstance(f, Function)
        else f
        for name, f in prepared.functions.items()
    }
    names = [r.name if isinstance(r, Var) else f"output{k}" for k, r in enumerate(mod.main.results)]
    types = {n: with_dtype_defined(d, source, inputs) for n, d in prepared.types.items()}
    attrs = {"outputs": tuple(names), **prepared.attrs}
    return replace(prepared, functions=retyped, attrs=attrs, types=types)


def mode_text(given: Sums) -> str:
    """An accumulation as operators name it: canonical text.

    Raises:
        UnsupportedError: it is none.
    """
    if isinstance(given, Format):
        define(given)
        return given.name
    if isinstance(given, Mapping):
        given = of_table(given)
    found = accumulator(given) if isinstance(given, str) else given
    return str(given if found is None else found)


def _layer(dtype: DType, given: Sums) -> Layer:
    """The datatype with this accumulation.

    Raises:
        UnsupportedError: there is none of this name, or not for the datatype.
    """
    mode = mode_text(given)
    if mode == CERTIFIED:  # nothing is lost in an accumulator of the width of the exact sum
        mode = "exact"
    if not is_mode(mode):
        raise UnsupportedError(unknown_mode(mode))
    chosen = accumulator(mode)
    if chosen is not None:
        check_accumulator("change_dtype", chosen, dtype)
    if chosen is not None and dtype == FLOAT32:
        return Layer(dtype, mode)
    if mode == "sequential" or (dtype.is_custom and span(dtype) is not None):
        return Layer(dtype, mode)
    raise UnsupportedError(
        f"{dtype} has only sequential accumulation, because its products are not those of known "
        "numbers; choose a described format"
    )


def _target(dst: Target) -> DType:
    """The dtype that `dst` names."""
    if isinstance(dst, Format):
        define(dst)
    elif isinstance(dst, DType) or dst.startswith("custom[") or dst == str(FLOAT32):
        return DType.parse(dst)
    fmt = get(dst)
    if fmt.storage_only:
        raise DtypelabError(f"{fmt.name} only stores values; choose a format to compute in")
    return DType.parse(f"custom[{fmt.name}]{fmt.nbits}")


def _by_pattern(
    mod: IRModule, mapping: Mapping[str, Target | tuple[Target, Sums]], accumulate: Sums
) -> Choice:
    """The choice that a mapping from patterns to formats makes."""
    targets = [(pattern, _choice(choice, accumulate)) for pattern, choice in mapping.items()]
    chosen: dict[Var, Layer] = {}
    used = set()
    for f in mod.functions.values():
        for b in f.bindings if isinstance(f, Function) else ():
            names = (b.var.name, *b.origins)
            for pattern, target in targets:
                if any(fnmatchcase(name, pattern) for name in names):
                    chosen[b.var] = target
                    used.add(pattern)
                    break
    for pattern in mapping:
        if pattern not in used:
            known = [n for b in mod.main.bindings for n in dict.fromkeys((b.var.name, *b.origins))]
            raise DtypelabError(
                f"{unknown('layer or pattern', pattern, known)}; every pattern must decide the "
                "format of a value that no pattern before it does"
            )
    return lambda b: chosen.get(b.var, Layer(FLOAT32, "sequential"))


def _choice(choice: Target | tuple[Target, Sums], accumulate: Sums) -> Layer:
    if isinstance(choice, tuple):
        return _layer(_target(choice[0]), choice[1])
    dtype = _target(choice)
    return _layer(dtype, accumulate if dtype.is_custom else "sequential")


class _Retype:
    """Rewrites one function; its inputs become `inputs`, by casts if the boundary stays."""

    def __init__(self, source: DType, choose: Choice, inputs: DType, boundary: bool):
        self.source, self.choose, self.inputs, self.boundary = source, choose, inputs, boundary
        self.new: dict[Var, Var] = {}
        self.known: set[Atom] = set()  # captured values that were of the source dtype
        self.origins: dict[Var, tuple[str, ...]] = {}
        self.casts: dict[tuple[Var, DType], Var] = {}
        self.constants: dict[tuple[int, DType], Constant] = {}
        self.bindings: list[Binding] = []
        self.names: set[str] = set()

    def whole(self, f: Function) -> Function:
        """A function of the module; inside others, sums are gathered already."""
        return self.run(self.gathered(f))

    def run(self, f: Function) -> Function:
        self.names = names_in(f)
        self.new |= {v: v for v in f.captures}
        params = tuple(map(self.param, f.params))
        for b in f.bindings:
            value = self.value(b)
            var = Var(b.var.name, _infer(b, value))
            self.bindings.append(Binding(var, value, b.origins))
            self.new[b.var], self.origins[b.var] = var, b.origins
        results = tuple(map(self.result, f.results))
        return replace(f, params=params, bindings=tuple(self.bindings), results=results)

    def gathered(self, f: Function) -> Function:
        """The function with the sums of each node in one, where they are not sequential."""
        from compiler.transform.gather_sums import gather_sums

        choose = self.choose

        def alike(part: Binding, b: Binding) -> bool:
            layer = choose(b)
            plain = isinstance(b.value, Call) and self.is_source(b.var)
            return plain and layer.accumulate != "sequential" and choose(part) == layer

        out, new = gather_sums(f, alike)
        self.choose = lambda b: choose(new.get(b.var, b))
        inner = {b: [self.gathered(g) for g in nested(b.value)] for b in out.bindings}
        changed = [
            replace(b, value=with_nested(b.value, fs)) if fs else b for b, fs in inner.items()
        ]
        return out.with_body(changed, out.results) if any(inner.values()) else out

    def is_source(self, a: Atom) -> bool:
        return a in self.known or (isinstance(a.type, TensorType) and a.type.dtype == self.source)

    def param(self, p: Var) -> Var:
        self.new[p] = p
        if self.inputs == self.source or self.type(p) == p.type:
            return p
        if self.boundary:
            self.new[p] = self.cast(p, self.inputs)
            return p
        self.new[p] = Var(p.name, self.type(p))
        return self.new[p]

    def type(self, a: Atom) -> Type:
        """The type of `a` inside, with the new dtype."""
        return with_dtype(atom_type(a), self.source, self.inputs)

    def result(self, r: Atom) -> Atom:
        if self.boundary and isinstance(r.type, TupleType) and self.type(r) != r.type:
            raise UnsupportedError(f"{r!r} is a tuple: return its fields, or give boundary=False")
        return self.atom(r, self.source if self.boundary else self.inputs)

    def atom(self, a: Atom, dtype: DType) -> Atom:
        """An operand; if it was of the source dtype, as a value of `dtype`."""
        if isinstance(a, Var):
            new = self.new[a]
            if not self.is_source(a) or _dtype(new) == dtype:
                return new
            if (a, dtype) not in self.casts:
                self.casts[a, dtype] = self.cast(a, dtype)
            return self.casts[a, dtype]
        if a.dtype != self.source or dtype == self.source:
            return a
        if (id(a), dtype) not in self.constants:
            self.constants[id(a), dtype] = Constant(self.encoded(a.data, dtype), dtype)
        return self.constants[id(a), dtype]

    def cast(self, a: Var, dtype: DType) -> Var:
        from compiler.op.library import get_op

        name = unique(f"{a.name}_{dtype.name or dtype}", self.names)
        op = get_op("cast")
        value = Call(op, (self.new[a],), op.make_attrs(dtype=str(dtype)))
        var = Var(name, infer_value(value))
        self.bindings.append(Binding(var, value, self.origins.get(a, ())))
        return var

    def encoded(self, data: Array, dtype: DType) -> Array:
        if self.source.is_custom:
            data = custom(self.source.name).decode(data, self.source)
        if not dtype.is_custom:
            return np.asarray(data, dtype.storage)
        return np.asarray(custom(dtype.name).encode(data, dtype), dtype.storage)

    def value(self, b: Binding) -> Value:
        layer = self.choose(b)
        # Tensor programs, registered functions and grids stay what they are: casts surround them.
        dtype = self.source if self.stays(b.value) else layer.dtype
        value = with_operands(b.value, (self.atom(a, dtype) for a in operands(b.value)))
        if is_control(value):
            if dtype != self.inputs or self.inputs == self.source:
                raise UnsupportedError(
                    f"%{b.var.name}: formats by layer do not go through control flow; change the "
                    "module to one format"
                )
            return retyped_control(value, self.source, dtype, self.inside)
        if not isinstance(value, Call):
            return value
        if isinstance(value.op, Function):
            raise UnsupportedError(
                f"%{b.var.name} is a fused function; change the dtype before optimizing or "
                "partitioning the module"
            )
        attrs = self.attrs(value.attrs, dtype)
        if (
            dtype == layer.dtype
            and hasattr(attrs, "accumulate")
            and any(map(self.is_source, operands(b.value)))
        ):
            attrs = replace(attrs, accumulate=layer.accumulate)
        return replace(value, attrs=attrs)

    def stays(self, value: Value) -> bool:
        """Whether a value is computed in the source dtype, whatever the format."""
        op = value.op if isinstance(value, Call) else None
        grid = isinstance(op, OpDef) and op.in_float32 and self.source == FLOAT32
        return grid or is_callee(value)

    def inside(self, f: Function) -> Function:
        """A branch, the body of a loop or a closure; what it captures is retyped already."""
        part = _Retype(self.source, self.choose, self.inputs, boundary=False)
        part.known = {new for old, new in self.new.items() if self.is_source(old)}
        return part.run(f)

    def attrs(self, attrs: Any, dtype: DType) -> Any:
        """Attributes that name the source dtype name the new one instead."""
        if not is_dataclass(attrs) or isinstance(attrs, type):
            return attrs
        named = [f.name for f in fields(attrs) if getattr(attrs, f.name) == str(self.source)]
        return replace(attrs, **dict.fromkeys(named, str(dtype)))


def _dtype(a: Atom) -> DType | None:
    return a.type.dtype if isinstance(a.type, TensorType) else None


def _infer(b: Binding, value: Value) -> Any:
    """Type of the retyped value of a binding."""
    try:
        return infer_value(value)
    except TypeInferenceError as error:
        where = f"node {', '.join(b.origins)}" if b.origins else f"%{b.var.name}"
        raise TypeInferenceError(f"{where}: {error}") from None
