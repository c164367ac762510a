"""Inputs and outputs of an exported program: their names, and their symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compiler.errors import UnsupportedError
from compiler.symbolic import Dim, Index, Var, dim
from compiler.types.names import identifier


def dimension_names(program: Any, dynamic_shapes: Any) -> dict[str, str]:
    """torch's symbols (`s77`) -> the names that the caller gave these sizes: of
    `torch.export.Dim("batch")`, or of a text; others keep torch's."""
    if dynamic_shapes is None:
        return {}
    shapes = [getattr(n.meta.get("val"), "shape", ()) for n in user_inputs(program)]
    given: list[Any] = []

    def visit(x: Any) -> None:
        """A description of one tensor is a mapping from axes, or a list of one entry an axis."""
        if x is None:
            given.append({})
        elif isinstance(x, Mapping) and all(isinstance(k, int) for k in x):
            given.append(dict(x))
        elif isinstance(x, (list, tuple)) and any(_is_size(d) for d in x):
            given.append(dict(enumerate(x)))
        else:
            for inner in x.values() if isinstance(x, Mapping) else x:
                visit(inner)

    visit(dynamic_shapes)
    names: dict[str, str] = {}
    if len(given) != len(shapes):
        return names
    for described, shape in zip(given, shapes, strict=True):
        for axis, size in described.items():
            name = getattr(size, "__name__", size)
            known = shape[axis] if axis < len(shape) else None
            symbol = getattr(getattr(known, "node", None), "expr", None)
            if isinstance(name, str) and getattr(symbol, "is_Symbol", False) and identifier(name):
                names.setdefault(str(symbol), identifier(name))
    return names


def _is_size(d: Any) -> bool:
    return d is not None and not isinstance(d, (list, tuple, Mapping))


def user_inputs(program: Any) -> list[Any]:
    """The nodes of what callers pass, tensors or not, in order."""
    specs = (s for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT")
    wanted = {s.arg.name for s in specs}
    return [n for n in program.graph.nodes if n.op == "placeholder" and n.name in wanted]


def size_of(d: Any, names: Mapping[str, str]) -> Dim:
    """A size of torch as a dimension.

    Raises:
        UnsupportedError: it is computed by more than sums and products.
    """
    if isinstance(d, int):
        return d
    return dim(_index(d.node.expr, names))


def _index(e: Any, names: Mapping[str, str]) -> Any:
    if e.is_Integer:
        return int(e)
    if e.is_Symbol:
        return Index.of(Var(names.get(str(e), str(e))))
    parts = [_index(a, names) for a in e.args]
    if e.is_Add or e.is_Mul:
        out = Index.of(0 if e.is_Add else 1)
        for p in parts:
            out = out + p if e.is_Add else out * p
        return out
    raise UnsupportedError(f"an input's size {e} is not supported: give sizes names of their own")


def output_names(program: Any) -> list[str]:
    """A name for each result: the keys of nested results, `output` for a single one."""
    import torch

    pytree: Any = torch.utils._pytree
    spec = program.call_spec.out_spec
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    leaves, _ = pytree.tree_flatten_with_path(tree)
    names: list[str] = []
    for path, _ in leaves:
        keys = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path]
        text = "_".join(keys) or "output"
        text = f"output_{text}" if text[0].isdigit() else text
        names.append(text)
    return names
