"""Random programs whose values are annotated for devices, and what the best plan of one copies."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

import compiler
from compiler.ir.devices import DEVICE_COPY, HOST, is_called
from compiler.ir.expr import IRModule, TupleGetItem, Var, tensor_type, uses
from compiler.transform import DeadCodeElimination, InferType
from compiler.types.tensor_types import TensorType

OPS = ("add", "nn.relu", "narrow", "wide", "split")
ROWS = 2


@dataclass(frozen=True)
class Program:
    """`lines`: (value, text in which `{v}` reads v); `said`: value -> its device."""

    lines: tuple[tuple[str, str], ...]
    results: tuple[str, ...]
    said: Mapping[str, str]

    def text(self, annotated: bool = True) -> str:
        """The program, with or without its annotations."""
        said = self.said if annotated else {}
        names = {v: f"%{v}_p" if v in said else f"%{v}" for v in ("x", "y", *dict(self.lines))}
        body = []
        for v, line in self.lines:
            body.append(f"  %{v} = {line.format(**names)};")
            if v in said:
                body.append(f'  {names[v]} = annotation.on_device(%{v}, device="{said[v]}");')
        params = ", ".join(f"%{v}: Tensor[({ROWS}, 6), float32]" for v in "xy")
        results = ", ".join(names[r] for r in self.results)
        return "\n".join([f"def @main({params}) {{", *body, f"  ({results},)", "}"])

    def module(self, annotated: bool = True) -> IRModule:
        """The program with types."""
        return InferType()(compiler.parse(self.text(annotated)))


@st.composite
def programs(draw: st.DrawFn, most: int = 6) -> Program:
    """Up to `most` operators on values of several sizes, some of two results."""
    lines: list[tuple[str, str]] = []
    widths = {"x": 6, "y": 6}
    computed = []
    for k in range(draw(st.integers(1, most))):
        op, a = draw(st.sampled_from(OPS)), draw(st.sampled_from([*widths]))
        width, v = widths[a], f"v{k}"
        if op == "add":
            b = draw(st.sampled_from([v for v in widths if widths[v] == width]))
            lines.append((v, f"add({{{a}}}, {{{b}}})"))
        elif op == "nn.relu":
            lines.append((v, f"nn.relu({{{a}}})"))
        elif op == "wide":
            lines.append((v, f"concatenate({{{a}}}, {{{a}}}, axis=1)"))
            width *= 2
        elif op == "narrow" or width < 2:
            lines.append((v, f"mean({{{a}}}, axis=[1], keepdims=True)"))
            width = 1
        else:
            lines.append((f"t{k}", f"split({{{a}}}, sizes=[1, {width - 1}], axis=1)"))
            lines += [(v, f"{{t{k}}}.0"), (f"u{k}", f"{{t{k}}}.1")]
            widths[f"u{k}"] = width - 1
            width = 1
        widths[v] = width
        computed.append(v)
    results = {*draw(st.sets(st.sampled_from([*widths]), max_size=3)), computed[-1]}
    where = st.sampled_from([HOST, "a", "b"])
    said = draw(st.dictionaries(st.sampled_from(computed), where, max_size=3))
    return Program(tuple(lines), tuple(sorted(results)), said)


def size(t: TensorType) -> int:
    """Bytes of a tensor of known size."""
    return int(np.prod(t.shape)) * t.dtype.nbytes


def copied(mod: IRModule) -> int:
    """Bytes that the copies in a planned program move."""
    every = [b.var for b in mod.main.bindings if is_called(b.value, DEVICE_COPY)]
    return sum(size(tensor_type(v)) for v in every)


def fewest(program: Program) -> int:
    """Bytes copied by the best of all ways to place the operators, through the host."""
    f = DeadCodeElimination()(program.module(annotated=False)).main
    computes: dict[Var, Var] = {}
    for b in f.bindings:
        whole = b.value.value if isinstance(b.value, TupleGetItem) else b.var
        assert isinstance(whole, Var)
        computes[b.var] = whole
    fixed = {computes[v]: d for v in computes if (d := program.said.get(v.name))}
    operators = list(dict.fromkeys(computes.values()))
    readers = uses(f)
    values = [v for v in (*f.params, *computes) if v in readers and isinstance(v.type, TensorType)]
    found = []
    choices = [[fixed[v]] if v in fixed else [HOST, "a", "b"] for v in operators]
    for some in itertools.product(*choices):
        at = dict(zip(operators, some, strict=True))
        total = 0
        for v in values:
            touched = {HOST if r is None else at[computes[r.var]] for r in readers[v]}
            touched.add(at[computes[v]] if v in computes else HOST)
            links = len(touched - {HOST}) if len(touched) > 1 else 0
            total += links * size(tensor_type(v))
        found.append(total)
    return min(found)
