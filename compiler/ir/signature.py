"""Calls of functions: the dimensions of their parameters are those of what they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.errors import TypeInferenceError
from compiler.symbolic import Index, IntLike, Var, dim
from compiler.types.tensor_types import FuncType, TensorType, TupleType, Type


def applied(f: FuncType, args: Sequence[Type], name: str = "the function") -> Type:
    """Type of a call of `f`. Dimensions of the result that no parameter determines stay as they
    are: they are found at run time.

    Raises:
        TypeInferenceError: the arguments do not fit.
    """
    if len(args) != len(f.params):
        raise TypeInferenceError(f"{name} takes {len(f.params)} operands, not {len(args)}")
    sizes: dict[Var, IntLike] = {}
    for p, a in zip(f.params, args, strict=True):
        solve(p, a, sizes)
    for k, (p, a) in enumerate(zip(f.params, args, strict=True)):
        if with_dims(p, sizes) != a:
            raise TypeInferenceError(f"operand {k} of {name} must be {p}, not {a}")
    return with_dims(f.result, sizes)


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
