"""PassContext, Sequential, decorators, instruments."""

import io

import numpy as np
import pytest

from compiler.errors import DtypelabError, TypeInferenceError, VerifyError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Binding, Call, Function, IRModule, Var
from compiler.ir.types import TensorType
from compiler.ir.verifier import verify
from compiler.op.opdef import get_op
from compiler.symbolic import Var as Dim
from compiler.transform.fuse_ops import FuseOps
from compiler.transform.infer_type import InferType
from compiler.transform.passes import (
    PassContext,
    PrintIR,
    Sequential,
    TimingInstrument,
    VerifyInstrument,
    function_pass,
    module_pass,
)


def chain() -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (Dim("n"), 4))
    y = b.call("add", x, b.const(np.ones(4, np.float32)), origins=["first"])
    z = b.call("nn.relu", y, origins=["second"])
    w = b.call("multiply", z, z, origins=["third"])
    return IRModule({"main": b.finish(w)})


def test_context_selects_passes_by_level_and_name() -> None:
    ran = []

    @module_pass(name="High", opt_level=3)
    def high(mod: IRModule, ctx: PassContext) -> IRModule:
        ran.append("High")
        return mod

    @function_pass(name="Low")
    class Low:
        def __init__(self, note: str = "low"):
            self.note = note

        def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
            ran.append(self.note)
            return f

    seq = Sequential([high, Low("noted")])
    mod = chain()
    seq(mod)
    assert ran == ["noted"]
    with PassContext(opt_level=3):
        seq(mod)
    assert ran[1:] == ["High", "noted"]
    with PassContext(required_pass=["High"], disabled_pass=["Low"]):
        seq(mod)
    assert ran[3:] == ["High"]


def test_fusion_levels_and_disabling() -> None:
    mod = chain()

    def groups(m: IRModule) -> list[int]:
        return [
            len(b.value.op.bindings)
            for b in m.main.bindings
            if isinstance(b.value, Call) and isinstance(b.value.op, Function)
        ]

    assert groups(FuseOps()(mod)) == [3]
    assert groups(FuseOps(fuse_opt_level=0)(mod)) == [1, 1, 1]
    fused = FuseOps()(mod)
    verify(fused)
    assert fused.main.bindings[0].origins == ("first", "second", "third")
    with PassContext(disabled_pass=["FuseOps"]):
        assert groups(Sequential([FuseOps()])(mod)) == []


def test_instruments_see_every_pass_and_verify_what_it_leaves() -> None:
    timing = TimingInstrument()
    with PassContext(instruments=[timing, VerifyInstrument()]):
        Sequential([InferType(), FuseOps()])(chain())
    assert [n for n, _ in timing.times] == ["InferType", "InferType", "FuseOps", "sequential"]
    assert "FuseOps" in timing.render()

    @module_pass(name="Breaker")
    def breaker(mod: IRModule, ctx: PassContext) -> IRModule:
        f = mod.main
        return mod.with_function("main", f.with_body(f.bindings[1:], f.results))

    with PassContext(instruments=[VerifyInstrument()]), pytest.raises(VerifyError, match="Breaker"):
        breaker(chain())


def test_print_ir_shows_the_program_where_it_stands() -> None:
    out = io.StringIO()
    Sequential([PrintIR("before", file=out), FuseOps(), PrintIR("after", file=out)])(chain())
    text = out.getvalue()
    assert text.index("// before") < text.index("// after")
    assert "primitive=True" in text.split("// after")[1]
    assert "primitive=True" not in text.split("// after")[0]


def test_unknown_required_pass_is_an_error() -> None:
    @module_pass(name="Needy", required=["InferTypes"])
    def needy(mod: IRModule, ctx: PassContext) -> IRModule:
        return mod

    with pytest.raises(DtypelabError, match="InferType"):
        Sequential([needy])(chain())


def test_type_errors_are_shown_in_the_program() -> None:
    x = Var("x", TensorType.of((2, 3), "float32"))
    i = Var("i", TensorType.of((2, 3), "int64"))
    y = Var("y")
    op = get_op("concatenate")
    f = Function((x, i), (Binding(y, Call(op, (x, i), op.make_attrs(axis=0))),), (y,))
    with pytest.raises(TypeInferenceError) as e:
        InferType()(IRModule({"main": f}))
    lines = str(e.value).splitlines()
    at = next(k for k, line in enumerate(lines) if "concatenate" in line and "%y" in line and k)
    assert "^^^^ error" in lines[at + 1]
    assert "int64" in lines[at + 1]
    assert "float32" in lines[at + 1]


def test_verifier_rejects_broken_programs() -> None:
    mod = chain()
    f = mod.main
    first = f.bindings[0]
    wrong = Binding(Var(first.var.name, TensorType.of((1,), "float32")), first.value)
    for bad, message in [
        (f.with_body([*f.bindings, first], f.results), "defined twice"),
        (f.with_body(f.bindings[::-1], f.results), "before it is defined"),
        (f.with_body([wrong], [wrong.var]), "has type"),
        (f.with_body(f.bindings, []), "returns nothing"),
    ]:
        with pytest.raises(VerifyError, match=message):
            verify(IRModule({"main": bad}))
