"""Calls of functions: the dimensions and type variables of their parameters are those of what they
are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.errors import TypeInferenceError
from compiler.symbolic import Index, IntLike, Var, dim
from compiler.types.data import parts, with_types
from compiler.types.tensor_types import DataType, FuncType, TensorType, TupleType, Type, TypeVar


def applied(f: FuncType, args: Sequence[Type], name: str = "the function") -> Type:
    """Type of a call of `f`. Dimensions of the result that no parameter determines stay as they
    are: they are found at run time.

    Raises:
        TypeInferenceError: the arguments do not fit.
    """
    if len(args) != len(f.params):
        raise TypeInferenceError(f"{name} takes {len(f.params)} operands, not {len(args)}")
    sizes: dict[Var, IntLike] = {}
    types: dict[TypeVar, Type] = {}
    for p, a in zip(f.params, args, strict=True):
        solve(p, a, sizes)
        solve_types(p, a, types)

    def here(t: Type) -> Type:
        return with_types(with_dims(t, sizes), types)

    for k, (p, a) in enumerate(zip(f.params, args, strict=True)):
        if here(p) != a:
            raise TypeInferenceError(f"operand {k} of {name} must be {p}, not {a}")
    return here(f.result)


def solve_types(wanted: Type, given: Type, types: dict[TypeVar, Type]) -> None:
    """Add to `types` what the type variables of `wanted` are in `given`."""
    if isinstance(wanted, TypeVar):
        types.setdefault(wanted, given)
    elif type(wanted) is type(given):
        for w, g in zip(parts(wanted), parts(given), strict=False):
            solve_types(w, g, types)


def solve(wanted: Type, given: Type, sizes: dict[Var, IntLike]) -> None:
    """Add to `sizes` what the dimensions that are only a name are in `given`."""
    if isinstance(wanted, TensorType) and isinstance(given, TensorType):
        for d, size in zip(wanted.shape, given.shape, strict=False):
            variable = name_of(d)
            if variable is not None:
                sizes.setdefault(variable, size)
    elif isinstance(wanted, TupleType) and isinstance(given, TupleType):
        for w, g in zip(wanted.fields, given.fields, strict=False):
            solve(w, g, sizes)
    elif isinstance(wanted, FuncType) and isinstance(given, FuncType):
        for w, g in zip(wanted.params, given.params, strict=False):
            solve(w, g, sizes)
        solve(wanted.result, given.result, sizes)
    elif isinstance(wanted, DataType) and isinstance(given, DataType):
        for w, g in zip(wanted.args, given.args, strict=False):
            solve(w, g, sizes)


def name_of(d: IntLike) -> Var | None:
    """The variable that a dimension is, if it is nothing more."""
    if not isinstance(d, Index) or len(d.terms) != 1 or d.const != 0:
        return None
    ((atom, coefficient),) = d.terms.items()
    return atom if isinstance(atom, Var) and coefficient == 1 else None


def with_dims(t: Type, sizes: Mapping[Var, IntLike]) -> Type:
    """`t` with dimensions replaced."""
    if isinstance(t, TensorType):
        shape = tuple(dim(d.subst(sizes)) if isinstance(d, Index) else d for d in t.shape)
        return TensorType(shape, t.dtype)
    if isinstance(t, TupleType):
        return TupleType(tuple(with_dims(x, sizes) for x in t.fields))
    if isinstance(t, DataType):
        return DataType(t.name, tuple(with_dims(x, sizes) for x in t.args))
    if isinstance(t, TypeVar):
        return t
    return FuncType(tuple(with_dims(p, sizes) for p in t.params), with_dims(t.result, sizes))


def matched(given: TensorType, wanted: TensorType) -> TensorType:
    """`wanted`, if a tensor of type `given` may turn out to have it.

    Raises:
        TypeInferenceError: dtype, rank or a known dimension differ.
    """
    both = zip(given.shape, wanted.shape, strict=False)
    known = all(a == b for a, b in both if isinstance(a, int) and isinstance(b, int))
    if given.dtype != wanted.dtype or given.rank != wanted.rank or not known:
        raise TypeInferenceError(f"{given} cannot match {wanted}")
    return wanted
