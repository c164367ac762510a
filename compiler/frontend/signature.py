"""A model's inputs: their types, with the caller's `shapes` over what the file says, and values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.boundary.elements import stored
from compiler.errors import ModelError, UnsupportedError, unknown
from compiler.frontend.element_types import element_dtype
from compiler.ir.expr import Constant
from compiler.symbolic import Dim, Index, Var, dim
from compiler.types.tensor_types import TensorType

if TYPE_CHECKING:
    import numpy.typing as npt

Requested = Sequence[Any]


def input_types(entries: Sequence[Any], shapes: Mapping[str, Requested]) -> dict[str, TensorType]:
    """Input name -> type. A named dimension that `shapes` fixes on one input is fixed on all.

    Raises:
        ModelError: an input has no shape and `shapes` gives none; or `shapes` does not fit.
    """
    known = [e.name for e in entries]
    for name in shapes:
        if name not in known:
            raise ModelError(unknown("input", name, known) + " (in shapes)")
    dims = _Dimensions([_declared(e) for e in entries])
    declared = {e.name: dims.shape(_declared(e)) for e in entries}
    fixed: dict[Var, Dim] = {}
    out: dict[str, TensorType] = {}
    for e in entries:
        shape = declared[e.name]
        if e.name in shapes:
            shape = _merged(e.name, shape, shapes[e.name], fixed, dims)
        elif shape is None:
            raise ModelError(
                f"input {e.name!r} has no shape; give it as shapes={{{e.name!r}: (...)}}"
            )
        code = e.type.tensor_type.elem_type
        out[e.name] = TensorType.of(shape, element_dtype(code, f"input {e.name!r}"))
    return {
        name: TensorType.of([Index.of(d).subst(fixed) for d in t.shape], t.dtype)
        for name, t in out.items()
    }


def _declared(entry: Any) -> Sequence[Any] | None:
    if entry.type.WhichOneof("value") != "tensor_type":
        raise UnsupportedError(f"input {entry.name!r} is not a tensor")
    t = entry.type.tensor_type
    return list(t.shape.dim) if t.HasField("shape") else None


def _is_name(param: str) -> bool:
    """Whether a `dim_param` names a dimension; some exporters write "?" or "-1" for "unknown"."""
    return any(c.isalpha() for c in param)


class _Dimensions:
    """Names symbolic dimensions: printable, and one per `dim_param`."""

    def __init__(self, shapes: Sequence[Sequence[Any] | None]):
        self._names: dict[str, str] = {}
        self._unnamed = 0
        for s in shapes:
            for d in s or ():
                if _is_name(d.dim_param):
                    self.named(d.dim_param)

    def named(self, param: str) -> Var:
        """The dimension of a name."""
        if param not in self._names:
            stem = re.sub(r"[^A-Za-z0-9_]+", "_", param).strip("_") or "d"
            stem = f"d{stem}" if stem[0].isdigit() else stem
            name, k = stem, 1
            while name in self._names.values():
                name, k = f"{stem}_{k}", k + 1
            self._names[param] = name
        return Var(self._names[param])

    def fresh(self) -> Var:
        """A dimension for a place without a name."""
        while f"d{self._unnamed}" in self._names.values():
            self._unnamed += 1
        self._unnamed += 1
        return Var(f"d{self._unnamed - 1}")

    def shape(self, declared: Sequence[Any] | None) -> tuple[Dim, ...] | None:
        """Dimensions of a TensorShapeProto."""
        if declared is None:
            return None
        # ONNX exporters write unknown sizes as 0 or -1 too
        return tuple(
            self.named(d.dim_param)
            if _is_name(d.dim_param)
            else int(d.dim_value)
            if d.dim_value > 0
            else self.fresh()
            for d in declared
        )


def _merged(
    name: str,
    shape: Sequence[Dim] | None,
    requested: Requested,
    fixed: dict[Var, Dim],
    dims: _Dimensions,
) -> tuple[Dim, ...]:
    try:
        wanted = tuple(requested)
    except TypeError:
        raise ModelError(f"shapes[{name!r}] must be a tuple, not {requested!r}") from None
    if shape is not None and len(wanted) != len(shape):
        raise ModelError(
            f"shapes[{name!r}] has {len(wanted)} dimensions; the input has {len(shape)}"
        )
    out: list[Dim] = []
    for i, w in enumerate(wanted):
        own = None if shape is None else shape[i]
        if w is None or (isinstance(w, int) and w == -1):
            new: Dim = own if own is not None else dims.fresh()
        elif isinstance(w, str) and _is_name(w):
            new = dims.named(w)
        elif isinstance(w, Index) or (not isinstance(w, (str, bool)) and _is_size(w)):
            new = dim(w if isinstance(w, Index) else int(w))
        else:
            raise ModelError(f"shapes[{name!r}]: {w!r} is not a dimension (an integer, or a name)")
        if isinstance(own, Var) and new != own and fixed.setdefault(own, new) != new:
            raise ModelError(
                f"the dimension {own} is given two values: {fixed[own]}, and {new} for axis {i} of "
                f"input {name!r}"
            )
        out.append(new)
    return tuple(out)


def _is_size(w: Any) -> bool:
    try:
        return bool(int(w) == w and w >= 0)
    except (TypeError, ValueError):
        return False


def given_constants(
    entries: Iterable[Any], constants: Mapping[str, npt.ArrayLike]
) -> dict[str, Constant]:
    """The values given for inputs of a graph (ValueInfoProtos).

    Raises:
        ModelError: there is no such input, or it has another element type.
    """
    declared = {e.name: e for e in entries}
    out: dict[str, Constant] = {}
    for name, given in constants.items():
        if name not in declared:
            raise ModelError(unknown("input", name, list(declared)) + " (in constants)")
        code = declared[name].type.tensor_type.elem_type
        dtype = element_dtype(code, f"input {name!r}")
        data = stored(np.asarray(given), dtype)
        if data.dtype != dtype.storage:
            raise ModelError(f"the constant {name!r} must be {dtype}, not {data.dtype}")
        out[name] = Constant(np.array(data, order="C"), dtype)
    return out
