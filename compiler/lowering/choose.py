"""Which lowering each custom datatype of a module gets, and why.

- `vector`: values are held in float lanes, and operations are float and integer expressions;
- `table`: every operation of a datatype of up to 8 bits is a look-up of codes;
- `library`: every operation is what was registered for it, such as the call of a C function.

All give the same bits. Where nothing else is asked for, it is the vector lowering if there is one,
except where a table is quicker: for datatypes of up to 8 bits whose sums are slow in lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.arithmetic.stochastic import random_dtype
from compiler.errors import InputError, LoweringError, unknown
from compiler.ir.expr import Call, IRModule, operands
from compiler.op.accumulator import accumulator
from compiler.tensor.custom_dtypes import VectorDType, lane_of
from compiler.types.dtypes import DType, custom
from compiler.types.tensor_types import TensorType

LOWERINGS = ("library", "table", "vector")
TABLE_BITS = 8
"""Widest datatypes that tables of all pairs are made for."""
_NATIVE = ("float32", "float64")
"""Accumulations that round no sum to the dtype of the terms before its end."""


@dataclass(frozen=True)
class DtypeLowering:
    """The lowering that a custom datatype gets in a module, and the reason in words."""

    dtype: DType
    lowering: str
    reason: str

    def __str__(self) -> str:
        return f"{self.dtype}: {self.lowering}, because {self.reason}"


def choose_lowerings(
    mod: IRModule, wanted: str | None = None, look_ups: bool = False
) -> tuple[DtypeLowering, ...]:
    """The lowering of every custom datatype in `main`: `wanted`, or the fastest that it has.
    `look_ups`: whether the target looks a result up sooner than it computes it in floats.

    Raises:
        InputError: there is no lowering of that name.
        LoweringError: a datatype does not have the wanted lowering.
    """
    if wanted is not None and wanted not in LOWERINGS:
        raise InputError(unknown("datatype lowering", wanted, LOWERINGS))
    elsewhere = _summed_elsewhere(mod)
    return tuple(_choose(d, wanted, d in elsewhere, look_ups) for d in custom_dtypes(mod))


def _summed_elsewhere(mod: IRModule) -> set[DType]:
    """The custom dtypes that tables of pairs are of no use to: sums are formed of them by fused
    multiply-adds, which have no tables, also into other formats; or all their sums are formed in
    float32 or float64, so that nothing is rounded to them in between."""
    calls = [b.value for b in mod.main.bindings if isinstance(b.value, Call)]
    modes = [(v, mode) for v in calls if (mode := getattr(v.attrs, "accumulate", ""))]
    fused = _read([v for v, mode in modes if mode == "fma" or accumulator(mode) is not None])
    native = _read([v for v, mode in modes if mode in _NATIVE])
    return fused | native - _read([v for v, mode in modes if mode not in _NATIVE])


def _read(calls: list[Call]) -> set[DType]:
    """The dtypes of the operands of calls."""
    return {a.type.dtype.code for v in calls for a in v.args if isinstance(a.type, TensorType)}


def custom_dtypes(mod: IRModule) -> list[DType]:
    """The custom dtypes of the values of `main`, in order of appearance."""
    f = mod.main
    read = [a for b in f.bindings for a in operands(b.value)]
    types = [a.type for a in (*f.params, *read, *(b.var for b in f.bindings), *f.results)]
    found = [t.dtype.code for t in types if isinstance(t, TensorType) and t.dtype.is_custom]
    return list(dict.fromkeys(found))


def forms_of(choices: tuple[DtypeLowering, ...]) -> dict[DType, DType]:
    """The dtypes that are not held as they are, and the forms they are held in."""
    forms = {"table": "table", "library": ""}
    held = {c.dtype: forms.get(c.lowering, str(lane_of(c.dtype))) for c in choices}
    return {dtype: dtype.in_form(form) for dtype, form in held.items() if form}


def _choose(dtype: DType, wanted: str | None, elsewhere: bool, look_ups: bool) -> DtypeLowering:
    kind, lane, slow = custom(dtype.name), lane_of(dtype), ""
    if isinstance(kind, VectorDType):
        reason = kind.lanes_reason(dtype)
        if wanted is None and dtype.bits <= TABLE_BITS and not elsewhere:
            slow = kind.slow_sums(dtype)
            if look_ups and not slow:
                slow = "the target has no vectors of floats, so that look-ups are quicker"
    else:
        reason = "only functions are known of it"
    if wanted == "library":
        return DtypeLowering(dtype, wanted, "the build asks for it")
    if random_dtype(dtype) is not None:
        if wanted is not None:
            raise LoweringError(
                f"{dtype} has no {wanted} lowering, because it rounds stochastically; "
                "leave dtype_lowering out"
            )
        return DtypeLowering(dtype, "library", "each of its roundings has random bits of its own")
    if wanted == "table" and dtype.bits > TABLE_BITS:
        raise LoweringError(
            f"{dtype} has no table lowering, because it has more than {TABLE_BITS} bits; "
            "leave dtype_lowering out"
        )
    if wanted == "vector" and lane is None:
        raise LoweringError(
            f"{dtype} has no vector lowering, because {reason}; leave dtype_lowering out"
        )
    if slow:
        return DtypeLowering(dtype, "table", slow)
    if lane is not None and wanted != "table":
        return DtypeLowering(dtype, "vector", reason)
    if dtype.bits <= TABLE_BITS:
        text = "the build asks for it" if wanted else f"{reason}, and it has {dtype.bits} bits"
        return DtypeLowering(dtype, "table", text)
    return DtypeLowering(dtype, "library", reason)
