"""The numpy interpreter: the oracle that every other way of running a module is compared with."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import arithmetic
from compiler.arithmetic.rounding_sites import RoundingSites
from compiler.arithmetic.stochastic import node_number
from compiler.boundary.assumptions import assumed, assumptions, check_assumptions
from compiler.boundary.data import Datum, bind_values, fits, tensor_params
from compiler.boundary.elements import elements_of
from compiler.boundary.external import call_func
from compiler.boundary.index_ranges import check_indices, index_ranges
from compiler.boundary.inputs import check_sizes, named_inputs, symbolic_sizes
from compiler.boundary.shapes import bind_dims, match_shape, sizes, stack_rows
from compiler.errors import InputError, OutOfMemoryError
from compiler.interpret import loop_nests
from compiler.interpret.iterations import endless, most_iterations
from compiler.ir.draws import drawn
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Cases,
    Constant,
    Construct,
    Function,
    GlobalVar,
    If,
    IRModule,
    Loop,
    Match,
    Tuple,
    TupleGetItem,
    Var,
    atom_type,
    tensor_type,
)
from compiler.ir.function_calls import CALL_TIR, Callee, is_callee
from compiler.ir.tensor_programs import callee
from compiler.op.opdef import OpDef
from compiler.op.sizes import MATCH_SHAPE
from compiler.symbolic import Index
from compiler.symbolic import Var as SymbolicVar
from compiler.types.dtypes import Array, DType
from compiler.types.tensor_types import TensorType, TupleType

MOST_FRAMES = 100_000
"""Calls under way at one time; a recursion that is deeper is refused."""

Run = Generator[tuple[Function, "Frame"], Any, Any]
"""Asks for the results of functions in frames, is sent them, and returns a value."""


@dataclass(frozen=True, eq=False)
class Frame:
    """What a running function can see: values of variables, sizes of dimensions, and the draw of
    random bits (`compiler.ir.draws`)."""

    values: dict[Var, Any]
    dims: dict[SymbolicVar, int]
    draw: int = 0

    def atom(self, a: Atom) -> Any:
        """Value of an atom."""
        return self.values[a] if isinstance(a, Var) else a.data


@dataclass(frozen=True, eq=False)
class Closure:
    """A function value: a function and what it captured."""

    function: Function
    frame: Frame

    def entered(self, args: Sequence[Any]) -> Frame:
        """The frame of a call."""
        f = self.function
        seen = {v: self.frame.values[v] for v in f.captures}
        frame = Frame(seen, dict(self.frame.dims), self.frame.draw)
        for p, a in zip(f.params, args, strict=True):
            bind_dims(atom_type(p), a, frame.dims, f"%{p.name}")
            frame.values[p] = a
        return frame


def evaluate(mod: IRModule, /, *args: Any, **kwargs: Any) -> Any:
    """Run `main` in numpy. Inputs are positional or by name, of any batch size the types allow;
    those of algebraic data types are `Datum`.

    Returns:
        The output array, or a list of arrays if there are several. Values of custom dtypes are
        their storage integers, but for the outputs that a model declares so (see
        `compiler.boundary.elements`).

    Raises:
        InputError: an input is missing, unknown, or of the wrong rank, shape or dtype; sizes found
            at run time contradict each other; a recursion is too deep, or a loop has no end.
    """
    f, elements = mod.main, elements_of(mod)
    frame = _environment(mod, args, kwargs)
    inputs = dict(tensor_params([(p.name, atom_type(p)) for p in f.params]))
    arrays = [frame.values[p] for p in f.params if p.name in inputs]
    elements.check(list(inputs), arrays)
    check_indices(index_ranges(mod), inputs, arrays, frame.dims)
    outs = elements.given(_driven(_body(f, frame, mod), mod))
    return outs[0] if len(outs) == 1 else outs


def trace(mod: IRModule, /, *args: Any, **kwargs: Any) -> Iterator[tuple[Binding, Any]]:
    """Like `evaluate`, yielding every binding with its value (an array, or a tuple of arrays)."""
    return trace_with(mod, {}, *args, **kwargs)


def trace_with(
    mod: IRModule, known: Mapping[Var, Array], /, *args: Any, **kwargs: Any
) -> Iterator[tuple[Binding, Any]]:
    """`trace`, where the values `known` of operators' results are not computed again."""
    f = mod.main
    frame = _environment(mod, args, kwargs)
    for b in f.bindings:
        found = known.get(b.var)
        frame.values[b.var] = _driven(_value(b, frame, mod), mod) if found is None else found
        yield b, frame.values[b.var]


def value_on(
    mod: IRModule,
    b: Binding,
    values: Mapping[Var, Any],
    *inputs: Any,
    found: Mapping[SymbolicVar, int] = MappingProxyType({}),
) -> Any:
    """The value of a binding of `main` where the variables that it reads have these `values`, and
    the sizes are those of `inputs`, and those `found` before."""
    frame = replace(_environment(mod, inputs, {}), values=dict(values))
    frame.dims.update(found)
    return _driven(_value(b, frame, mod), mod)


def _environment(mod: IRModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Frame:
    f, elements = mod.main, elements_of(mod)
    inputs = [(p.name, atom_type(p)) for p in f.params]
    if elements.packs:
        given = named_inputs([name for name, _ in inputs], args, kwargs)
        args, kwargs = (elements.packed(given),), {}
    values, dims = bind_values(inputs, args, kwargs, mod.types)
    if dims:
        check_assumptions(assumptions(f), tensor_params(inputs), dims)
        check_sizes(symbolic_sizes(f), dims)
    known, draw = dict(zip(f.params, values, strict=True)), drawn(f)
    return Frame(known, dims, 0 if draw is None else int(known[draw]))


def _driven(first: Run, mod: IRModule) -> Any:
    """The value of a run: what it asks for is run on a stack of our own, however deep."""
    stack, value = [first], None
    while stack:
        try:
            f, frame = stack[-1].send(value)
        except StopIteration as done:
            stack.pop()
            value = done.value
            continue
        if len(stack) >= MOST_FRAMES:
            raise InputError(f"more than {MOST_FRAMES} calls are under way: is there an end to it?")
        stack.append(_body(f, frame, mod))
        value = None
    return value


def _body(f: Function, frame: Frame, mod: IRModule) -> Run:
    """The results of a function, as a list."""
    for b in f.bindings:
        frame.values[b.var] = yield from _value(b, frame, mod)
    return [frame.atom(r) for r in f.results]


def _value(b: Binding, frame: Frame, mod: IRModule) -> Run:
    v = b.value
    if isinstance(v, Tuple):
        return tuple(map(frame.atom, v.fields))
    if isinstance(v, TupleGetItem):
        return frame.atom(v.value)[v.index]
    if isinstance(v, Construct):
        return Datum(v.constructor, tuple(map(frame.atom, v.fields)))
    if isinstance(v, Function):
        return Closure(v, frame)
    if isinstance(v, GlobalVar):
        return Closure(mod[v.name], Frame({}, {}, frame.draw))
    if isinstance(v, Var | Constant):
        return frame.atom(v)
    if is_callee(v):
        return _called(mod, v, list(map(frame.atom, v.args)), frame.dims)
    if isinstance(v, Call) and v.op is MATCH_SHAPE:
        numbers: Array = frame.atom(v.args[0])
        match_shape(v.attrs.shape, numbers, frame.dims, f"%{b.var.name}", v.attrs.claim)
        return numbers
    if isinstance(v, Call) and isinstance(v.op, OpDef):
        check_assumptions(assumed(b), (), frame.dims)
        args = list(map(frame.atom, v.args))
        try:
            return call_reference(v, args, b.var, frame.dims, frame.draw)
        except KeyError as e:
            if not isinstance(e.args[0], SymbolicVar):
                raise
            message = f"%{b.var.name}: the size of dimension {e.args[0]} is not known"
            raise InputError(message) from None
    if isinstance(v, Match):
        out = frame.atom(v.value)
    elif isinstance(v, Loop):
        out = yield from _loop(b, v, frame)
    else:
        f, args = _callee(v, frame, mod)
        results = yield f.function, f.entered(args)
        out = results[0] if len(results) == 1 else tuple(results)
    bind_dims(atom_type(b.var), out, frame.dims, f"%{b.var.name}")
    return out


def _callee(v: Call | If | Cases, frame: Frame, mod: IRModule) -> tuple[Closure, list[Any]]:
    if isinstance(v, Cases):
        value = frame.atom(v.value)
        found = ((fits(p, value), body) for p, body in zip(v.patterns, v.bodies, strict=True))
        return next((Closure(body, frame), given) for given, body in found if given is not None)
    if isinstance(v, If):
        return Closure(v.then if frame.atom(v.condition) else v.otherwise, frame), []
    args = list(map(frame.atom, v.args))
    if isinstance(v.op, Var):
        return frame.values[v.op], args
    if isinstance(v.op, Function):
        return Closure(v.op, Frame({}, frame.dims, frame.draw)), args
    assert isinstance(v.op, GlobalVar)
    return Closure(mod[v.op.name], Frame({}, {}, frame.draw)), args


def _called(
    mod: IRModule, call: Call, args: Sequence[Array], dims: Mapping[SymbolicVar, int]
) -> Array | tuple[Array, ...]:
    """Result of a call on storage arrays: tensor programs are walked in numpy, registered functions
    called."""
    attrs: Callee = call.attrs
    outs = [np.zeros(sizes(t, dims), t.dtype.storage) for t in attrs.outputs]
    if call.op is CALL_TIR:
        loop_nests.run(callee(mod, call), [*args, *outs], dims)
    else:
        call_func(attrs.func, [*args, *outs])
    return tuple(outs) if isinstance(attrs.out, TupleType) else outs[0]


def _loop(b: Binding, v: Loop, frame: Frame) -> Run:
    body, state, going = Closure(v.body, frame), list(map(frame.atom, v.init)), frame.atom(v.go)
    types = [tensor_type(r) for r in v.body.results[1 + len(state) :]]
    stacks: list[list[Array]] = [[] for _ in types]
    most, done = most_iterations(), 0
    while going:
        if done == most:
            raise endless(b.var.name, b.origins, most)
        done += 1
        going, *results = yield v.body, body.entered(state)
        state = results[: len(state)]
        for stack, row in zip(stacks, results[len(state) :], strict=True):
            stack.append(row)
    stacked = [stack_rows(s, t, frame.dims) for s, t in zip(stacks, types, strict=True)]
    return (*state, *stacked)


def call_reference(
    v: Call, args: list[Array], out: Var, dims: Mapping[SymbolicVar, int], draw: int = 0
) -> Any:
    """The reference of one operator call on arrays, checked against its inferred type; `draw` is
    that of its random bits.

    Raises:
        OutOfMemoryError: there is no memory for it.
        InputError: an operand without elements has no value.
    """
    assert isinstance(v.op, OpDef)
    sites = RoundingSites(node_number(out.name), None if v.op.numbered else v.op.name, draw)
    ar = arithmetic(tensor_type(v.args[0]).dtype if v.args else DType("float", 32), sites)
    t = atom_type(out)
    try:
        result = v.op.reference(ar, resolve_attrs(v.attrs, dims), *args)
    except MemoryError as e:
        raise OutOfMemoryError(f"no memory for {v.op} (%{out.name}): {e}") from e
    except (ValueError, IndexError, ZeroDivisionError) as e:
        if all(a.size for a in args):
            raise
        if not isinstance(t, TensorType) or 0 not in sizes(t, dims):
            raise InputError(f"{v.op} has no value for an operand without elements: {e}") from None
        result = np.empty(sizes(t, dims), t.dtype.storage)
    if isinstance(t, TensorType):
        _check(np.asarray(result), t, v, dims)
        return np.asarray(result)
    return tuple(np.asarray(r) for r in result)


def resolve_attrs(attrs: Any, dims: Mapping[SymbolicVar, int]) -> Any:
    """Attributes with their symbolic dimensions (alone or in tuples) replaced by numbers."""
    if not is_dataclass(attrs):
        return attrs
    changed = {}
    for f in fields(attrs):
        value = getattr(attrs, f.name)
        if isinstance(value, Index):
            changed[f.name] = value.value(dims)
        elif isinstance(value, tuple) and any(isinstance(x, Index) for x in value):
            changed[f.name] = tuple(x.value(dims) if isinstance(x, Index) else x for x in value)
    return replace(attrs, **changed) if changed and not isinstance(attrs, type) else attrs


def _check(a: Array, t: TensorType, v: Call, dims: Mapping[SymbolicVar, int]) -> None:
    want = sizes(t, dims)
    if a.shape != want or a.dtype != t.dtype.storage:
        raise InputError(
            f"the reference of {v.op} gave {a.dtype}{list(a.shape)}, not {t.dtype}{list(want)}"
        )
