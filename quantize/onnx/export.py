"""export_onnx: a plan as an ONNX model of float operators between QuantizeLinear / DequantizeLinear
pairs.

What is written is the graph of `simulate`: a simulated_quantize becomes a QuantizeLinear and a
DequantizeLinear; weights and biases are int8 and int32 initializers with a DequantizeLinear.
Runtimes recognize the pattern and run integer kernels of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.boundary.packed import is_packed
from compiler.errors import UnsupportedError
from compiler.files.writing import check_writable, write_whole
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
    tensor_type,
)
from compiler.op.opdef import OpDef
from compiler.symbolic import Index
from compiler.types.dtypes import Array
from compiler.types.names import unique
from compiler.types.tensor_types import TensorType
from quantize.plan.plan import Plan

if TYPE_CHECKING:
    import onnx

OPSET, IR_VERSION = 19, 9
WIDE_OPSET, WIDE_IR_VERSION = 21, 10
"""The first in which QuantizeLinear and DequantizeLinear take int16."""


def export_onnx(mod: IRModule, plan: Plan, path: str | Path) -> None:
    """Write `mod`, quantized by `plan`, as a QDQ model that other runtimes execute.

    It is of opset 19, or of opset 21 if it has more than 8 bits somewhere.

    Inputs and outputs have the names they had in the imported model, float32 values and symbolic
    dimensions. Nodes that the plan leaves float have no QuantizeLinear around them. Runtimes choose
    accumulators themselves: those of the plan (`QConfig.accumulate`) are not part of the model.
    Nothing is left behind if writing fails.

    Raises:
        ConfigError: the plan was made for another model, or the file cannot be written.
        UnsupportedError: an operator that ONNX does not have in this form; all are listed. Or
            the plan has nodes in number formats.
    """
    check_writable(path)
    write_whole(path, to_model(mod, plan).SerializeToString())


def to_model(mod: IRModule, plan: Plan) -> onnx.ModelProto:
    """The QDQ model as a ModelProto; see `export_onnx`.

    Raises:
        ConfigError: the plan was made for another model.
        UnsupportedError: as `export_onnx`.
    """
    import onnx

    from quantize.realization.simulate import simulate

    if plan.formats:
        raise UnsupportedError(
            f"nodes in number formats are not written as ONNX: {', '.join(plan.formats)}; quantize "
            "them to integers, or leave them in float"
        )

    from quantize.onnx.regions import imports_of

    simulated = simulate(mod, plan.sequential)
    writer = Writer(simulated)
    graph = writer.graph()
    dtypes = [p.dtype for p in plan.values.values()] + [p.dtype for p in plan.weights.values()]
    opsets = (WIDE_OPSET,) if "int16" in dtypes else (OPSET, WIDE_OPSET)
    opset, domains = imports_of(simulated.main, opsets)
    versions = {"": opset, **domains}
    model = onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in versions.items()],
        producer_name="dtypelab",
        ir_version=WIDE_IR_VERSION if opset == WIDE_OPSET else IR_VERSION,
    )
    onnx.checker.check_model(model)
    return model


class Writer:
    """Collects the nodes and initializers of one graph."""

    def __init__(self, mod: IRModule):
        self.mod, self.f = mod, mod.main
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.sparse: list[Any] = []
        self.regions: dict[tuple[bytes | str, ...], list[str]] = {}
        self.sizes: dict[Index, str] = {}
        self._names: dict[Var, str] = {}
        self._fields: dict[Var, list[str]] = {}
        self._constants: dict[Constant, str] = {}
        self._taken: set[str] = set()
        self.inputs = self._interface(mod.attrs.get("inputs"), [p.name for p in self.f.params])
        results = [r.name if isinstance(r, Var) else "result" for r in self.f.results]
        self.outputs = self._interface(mod.attrs.get("outputs"), results)

    def _interface(self, original: Any, names: list[str]) -> list[str]:
        chosen = list(original) if original and len(original) == len(names) else names
        return [self.fresh(n) for n in chosen]

    def graph(self) -> Any:
        """The whole function as a GraphProto.

        Raises:
            UnsupportedError: operators that cannot be written; all are listed.
        """
        from onnx import helper

        problems: list[str] = []
        for p, name in zip(self.f.params, self.inputs, strict=True):
            self._names[p] = name
        produced = {b.var for b in self.f.bindings}
        for r, name in zip(self.f.results, self.outputs, strict=True):
            if isinstance(r, Var) and r in produced and r not in self._names:
                self._names[r] = name
        for b in self.f.bindings:
            op = getattr(b.value.op, "name", "function") if isinstance(b.value, Call) else ""
            if isinstance(b.value, Call) and self.writer(b.value) is None:
                problems.append(f"{op} (%{b.var.name})")
                continue
            if not problems:
                try:
                    self._binding(b)
                except UnsupportedError as e:
                    problems.append(f"{op} (%{b.var.name}: {e})")
        if problems:
            raise UnsupportedError(
                f"these operators cannot be written as ONNX: {', '.join(problems)}"
            )
        for r, name in zip(self.f.results, self.outputs, strict=True):
            if not isinstance(r, Var) or self._names[r] != name:
                self.node("Identity", [self.name(r)], [name])
        infos = [
            [_value_info(n, tensor_type(a), k) for n, a, k in zip(names, atoms, kinds, strict=True)]
            for names, atoms, kinds in (
                (self.inputs, self.f.params, self._declared("inputs", self.f.params)),
                (self.outputs, self.f.results, self._declared("outputs", self.f.results)),
            )
        ]
        return helper.make_graph(
            self.nodes, "main", *infos, self.initializers, sparse_initializer=self.sparse
        )

    def _declared(self, side: str, atoms: Sequence[Atom]) -> list[str]:
        """What is declared of inputs or outputs that are no tensors of numbers; "" of others."""
        from quantize.onnx.regions import declared

        kinds = declared(self.mod, side)
        return kinds if len(kinds) == len(atoms) else [""] * len(atoms)

    def _binding(self, b: Binding) -> None:
        v = b.value
        if isinstance(v, TupleGetItem):
            assert isinstance(v.value, Var)
            self.alias(b.var, self._fields[v.value][v.index])
        elif isinstance(v, Tuple):
            self._fields[b.var] = [self.name(a) for a in v.fields]
        elif isinstance(v, Call):
            write = self.writer(v)
            assert write is not None, "what cannot be written is listed before"
            write(self, v, b.var)
        elif isinstance(v, Var | Constant):
            self.alias(b.var, self.name(v))
        else:
            raise UnsupportedError(f"%{b.var.name}: control flow cannot be exported")

    def writer(self, call: Call) -> Callable[[Writer, Call, Var], None] | None:
        """What writes a call; None if nothing does."""
        from quantize.onnx.operators import writer

        return writer(call.op) if isinstance(call.op, OpDef) else None

    # ---- what operators use ----------------------------------------------------------------------
    def fresh(self, stem: str) -> str:
        """A name nobody has yet, from `stem`."""
        return unique(stem, self._taken)

    def name(self, a: Atom) -> str:
        """The ONNX name of a value; constants become initializers."""
        if isinstance(a, Constant):
            if a not in self._constants:
                self._constants[a] = self.constant(a.data, name=a.name)
            return self._constants[a]
        return self.out(a)

    def out(self, v: Var) -> str:
        """The ONNX name that a variable has or gets."""
        if v not in self._names:
            self._names[v] = self.fresh(v.name)
        return self._names[v]

    def fields(self, v: Var, count: int) -> list[str]:
        """Names for the fields of a tuple."""
        self._fields[v] = [self.fresh(f"{v.name}_{k}") for k in range(count)]
        return self._fields[v]

    def alias(self, v: Var, name: str) -> None:
        """Let `v` be another name of a value."""
        if v in self._names:
            self.node("Identity", [name], [self._names[v]])
        else:
            self._names[v] = name

    def constant(self, data: Any, dtype: Any = None, name: str = "") -> str:
        """The name of a new initializer: `name`, if it has one and nobody else does."""
        from onnx import numpy_helper

        array: Array = np.ascontiguousarray(np.asarray(data, dtype)).reshape(np.shape(data))
        name = self.fresh(name or f"constant_{len(self.initializers)}")
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: list[str], outputs: list[str] | str, **attrs: Any) -> str:
        """Append a node; returns the name of its first output."""
        from onnx import helper

        outs = [outputs] if isinstance(outputs, str) else outputs
        self.nodes.append(
            helper.make_node(op, inputs, outs, self.fresh(f"{op}_{outs[0]}"), **attrs)
        )
        return outs[0]

    def step(self, op: str, inputs: list[str], stem: str, **attrs: Any) -> str:
        """Append a node with an intermediate result."""
        return self.node(op, inputs, self.fresh(stem), **attrs)


def _value_info(name: str, t: TensorType, kind: str) -> Any:
    from onnx import helper

    from quantize.onnx.regions import packed_info

    if is_packed(kind):
        return packed_info(name, kind, t)
    shape = [d if isinstance(d, int) else str(d) for d in t.shape]
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(t.dtype.storage), shape
    )
