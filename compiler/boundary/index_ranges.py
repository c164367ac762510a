"""Inputs that are positions in a tensor, such as the numbers of words: checked when a program is
called.

Inside a program, a position beyond an axis reads its border and writes nothing. ONNX calls it an
error. The importer notes in `mod.attrs[INDICES]` which inputs are positions as they come, and where
a program counts up to a size of its inputs; positions that it computes otherwise are not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.errors import InputError, ModelError
from compiler.ir.expr import IRModule
from compiler.symbolic import Dim, Index, Var, dim
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType
from compiler.types.type_parser import DimensionParser

INDICES = "indices"
"""Attribute of modules: rows of what an `IndexRange` has."""


@dataclass(frozen=True)
class IndexRange:
    """Positions that must be -size to size - 1, as `node` of the imported model needs it.

    Attributes:
        size: of the axis.
        node: as errors name it.
        input: whose elements they are; empty for the numbers 0 to `highest`.
        column: which elements along its last axis; all of them if negative.
        highest: see `input`.
    """

    size: Dim
    node: str
    input: str = ""
    column: int = -1
    highest: Dim = 0

    def row(self) -> list[Any]:
        """As an attribute of a module."""
        return [str(self.size), self.node, self.input, self.column, str(self.highest)]


def index_ranges(mod: IRModule) -> tuple[IndexRange, ...]:
    """What `mod` notes of the inputs that `main` still has."""
    types = {p.name: p.type for p in mod.main.params}
    return ranges_among(mod.attrs.get(INDICES, ()), types)


def ranges_among(rows: Any, types: Mapping[str, Any]) -> tuple[IndexRange, ...]:
    """The same of rows (see `IndexRange.row`), for inputs of these types, which tell the sizes.

    Raises:
        ModelError: they are no such rows.
    """
    kinds = [t for t in types.values() if isinstance(t, TensorType)]
    shown = {v for t in kinds for d in t.shape if isinstance(d, Index) for v in d.vars()}
    found = []
    try:
        for size, node, name, column, highest in rows:
            sizes = [dim(DimensionParser(str(text)).dimension()) for text in (size, highest)]
            found.append(IndexRange(sizes[0], str(node), str(name), int(column), sizes[1]))
    except (TypeError, ValueError) as e:
        raise ModelError(f"the module's attribute {INDICES!r} is not a list of positions") from e
    return tuple(r for r in found if _vars(r) <= shown and (not r.input or _fits(r, types)))


def _vars(r: IndexRange) -> set[Var]:
    return Index.of(r.size).vars() | Index.of(r.highest).vars()


def _fits(r: IndexRange, types: Mapping[str, Any]) -> bool:
    """Whether there is still such an input of integers, with that column."""
    t = types.get(r.input)
    if not isinstance(t, TensorType) or not t.dtype.is_integer:
        return False
    columns = t.shape[-1] if t.rank else 0
    return r.column < 0 or (isinstance(columns, int) and r.column < columns)


def check_indices(
    ranges: Iterable[IndexRange],
    inputs: Mapping[str, TensorType],
    arrays: Sequence[Array],
    dims: Mapping[Var, int],
) -> None:
    """Check the positions among the inputs of a call.

    Raises:
        InputError: one is outside; names it, the input and the node.
    """
    given = dict(zip(inputs, arrays, strict=True))
    for r in ranges:
        size, highest = (
            d if isinstance(d, int) else int(d.value(dims)) for d in (r.size, r.highest)
        )
        if r.input:
            a = given[r.input]
            a = a if r.column < 0 else a[..., r.column]
            ends: tuple[int, ...] = (int(a.min()), int(a.max())) if a.size else ()
        else:
            ends = (highest,)
        for at in ends:
            if not -size <= at < size:
                where = f"{r.node} takes it for a position along an axis of length {size}"
                if r.input:
                    text = f"input {r.input!r} holds {at}, but {where}: give {-size} to {size - 1}"
                    raise InputError(text)
                raise InputError(f"{r.highest} is {at}, but {where}: give smaller sizes")
