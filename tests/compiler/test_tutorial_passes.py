"""The tutorial "How to use the pass infrastructure", step by step: every program that it prints, up
to the names of variables.

One thing differs on purpose: constants stay in the kernel that reads them, where the tutorial's
fused functions take them as parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

import compiler
from compiler import transform
from compiler.ir.expr import Constant, Function, IRModule, Value
from compiler.passes.rewrite import call
from compiler.transform import layout_rules


def example(size: int = 56, channels: int = 64) -> IRModule:
    """The tutorial's program, on images of `size` x `size`."""
    inner = size - 2
    c = compiler.const(np.random.default_rng(1).random((1, channels, inner, inner), np.float32))
    x = compiler.var("x", (1, channels, size, size))
    weight = compiler.var("weight", (channels, channels, 3, 3))
    conv = compiler.call("nn.conv2d", x, weight)
    y = compiler.call("add", c, c)
    y = y * compiler.const(2.0, "float32")
    y = conv + y
    z = y + c
    z1 = y + c
    return IRModule({"main": compiler.function([x, weight], z + z1)})


def canonical(text: str) -> str:
    """The program with its variables numbered in the order in which they are defined, function by
    function, and without comments and types."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*|: Tensor\[[^\]]*\]| -> Tensor\[[^\]]*\]", "", text)
    text = re.sub(r"meta\[Constant\]", "meta", text)
    scopes: list[dict[str, str]] = []
    out = []
    for part in re.split(r"(%\w+|\bfn\b|\bdef\b|\{|\})", text):
        if part in ("fn", "def"):
            scopes.append({})
        elif part == "}":
            scopes.pop()
        elif part.startswith("%"):
            part = scopes[-1].setdefault(part, f"%v{len(scopes[-1])}")
        out.append(part)
    return re.sub(r" (?=[;,)])", "", re.sub(r"\s+", " ", "".join(out))).strip()


def shows(mod: IRModule, text: str) -> bool:
    """Whether the module prints as the tutorial's program."""
    got, want = canonical(mod.astext()), canonical(text)
    assert got == want, f"\n{mod}\n{got}\n{want}"
    return True


def computes_the_same(*passes: transform.Pass, level: int = 2) -> bool:
    """Whether the passes keep what a small example computes, interpreted and built."""
    mod, rng = example(6), np.random.default_rng(0)
    x, w = (rng.standard_normal(p.type.shape).astype(np.float32) for p in mod.main.params)
    want = compiler.evaluate(mod, x, w)
    with compiler.PassContext(opt_level=level, instruments=[compiler.VerifyInstrument()]):
        out = compiler.Sequential(passes)(mod)
        built = compiler.build(out)
    np.testing.assert_allclose(compiler.evaluate(out, x, w), want, rtol=1e-5)
    np.testing.assert_allclose(built(x, w), want, rtol=1e-4, atol=1e-4)
    return True


HEAD = "def @main(%x: Tensor[(1, 64, 56, 56), float32], %weight: Tensor[(64, 64, 3, 3), float32])"

FOLDED = f"""{HEAD} {{
  %0 = nn.conv2d(%x, %weight);
  %1 = add(%0, meta[Constant][0]);
  %2 = add(%1, meta[Constant][1]);
  %3 = add(%1, meta[Constant][1]);
  %4 = add(%2, %3);
  %4
}}"""


def test_manually_applied_passes() -> None:
    mod = transform.FoldConstant()(example())
    assert shows(mod, FOLDED)
    mod = transform.EliminateCommonSubexpr()(mod)
    assert shows(mod, FOLDED.replace("  %3 = add(%1, meta[Constant][1]);\n", "").replace(
        "add(%2, %3)", "add(%2, %2)"))  # fmt: skip
    mod = transform.FuseOps(fuse_opt_level=0)(mod)
    assert shows(
        mod,
        f"""{HEAD} {{
  %1 = (fn (%p0, %p1, primitive=True) {{
    %0 = nn.conv2d(%p0, %p1);
    %0
  }})(%x, %weight);
  %3 = (fn (%p0, primitive=True) {{
    %0 = add(%p0, meta[Constant][0]);
    %0
  }})(%1);
  %5 = (fn (%p0, primitive=True) {{
    %0 = add(%p0, meta[Constant][1]);
    %0
  }})(%3);
  %6 = (fn (%p0, primitive=True) {{
    %0 = add(%p0, %p0);
    %0
  }})(%5);
  %6
}}""",
    )
    assert computes_the_same(transform.FoldConstant(), transform.EliminateCommonSubexpr(),
                             transform.FuseOps(fuse_opt_level=0), level=3)  # fmt: skip


TWO_ADDITIONS = f"""{HEAD} {{
  %4 = (fn (%p0, %p1, primitive=True) {{
    %0 = nn.conv2d(%p0, %p1);
    %1 = add(%0, meta[Constant][0]);
    %2 = add(%1, meta[Constant][1]);
    %3 = add(%1, meta[Constant][1]);
    %4 = add(%2, %3);
    %4
  }})(%x, %weight);
  %4
}}"""
ONE_ADDITION = TWO_ADDITIONS.replace("    %3 = add(%1, meta[Constant][1]);\n", "").replace(
    "add(%2, %3)", "add(%2, %2)"
)


def sequence() -> compiler.Sequential:
    return compiler.Sequential(
        [
            transform.FoldConstant(),
            transform.EliminateCommonSubexpr(),
            transform.FuseOps(fuse_opt_level=2),
        ]
    )


def test_sequential_runs_what_the_level_enables() -> None:
    assert shows(sequence()(example()), TWO_ADDITIONS)
    with compiler.PassContext(opt_level=3):
        assert shows(sequence()(example()), ONE_ADDITION)
    with compiler.PassContext(opt_level=3, disabled_pass=["EliminateCommonSubexpr"]):
        assert shows(sequence()(example()), TWO_ADDITIONS)
    for level in (2, 3):
        assert computes_the_same(*sequence().passes, level=level)


@pytest.fixture
def registered() -> Iterator[None]:
    """A rule for convolutions, as the tutorial registers it."""
    before = dict(layout_rules._rules)
    compiler.register_alter_op_layout(
        "nn.conv2d", lambda attrs, types, lanes, target: compiler.OpLayout(data=16, out=16)
    )
    yield
    layout_rules._rules.clear()
    layout_rules._rules.update(before)


@pytest.mark.usefixtures("registered")
def test_a_registered_rule_alters_the_layout() -> None:
    with compiler.PassContext(opt_level=3):
        mod = compiler.Sequential([transform.AlterOpLayout("llvm")])(example())
    assert shows(
        mod,
        f"""{HEAD} {{
  %0 = layout_transform(%x, dst_layout="NCHW16c");
  %1 = nn.conv2d(%0, %weight, data_layout="NCHW16c", out_layout="NCHW16c");
  %2 = add(meta[Constant][0], meta[Constant][0]);
  %3 = multiply(%2, 2.0float32);
  %4 = layout_transform(%3, dst_layout="NCHW16c");
  %5 = add(%1, %4);
  %6 = layout_transform(meta[Constant][0], dst_layout="NCHW16c");
  %7 = add(%5, %6);
  %8 = add(%5, %6);
  %9 = add(%7, %8);
  %10 = layout_transform(%9, src_layout="NCHW16c", channels=64);
  %10
}}""",
    )
    assert computes_the_same(transform.AlterOpLayout("llvm"), level=3)


def test_a_convolution_of_unknown_weights_is_blocked_where_channels_fill_the_blocks() -> None:
    assert "data_layout" in str(transform.AlterOpLayout("llvm")(example()))
    assert computes_the_same(transform.AlterOpLayout("llvm"), level=3)
    odd = example(channels=62)
    assert transform.AlterOpLayout("llvm")(odd) is odd


@transform.function_pass(opt_level=1)
class CustomPipeline:
    """Multiplies every constant."""

    def __init__(self, multiplier: Constant):
        self.multiplier = multiplier

    def transform_function(
        self, func: Function, mod: IRModule, ctx: compiler.PassContext
    ) -> Function:
        multiplier = self.multiplier

        class ReplaceConstant(compiler.ExprMutator):
            def visit_constant(self, c: Constant) -> Value:
                return call("multiply", multiplier, c)

        return ReplaceConstant().visit(func)


def test_a_decorated_class_is_a_pass() -> None:
    custom = CustomPipeline(multiplier=compiler.const(3.0, "float32"))
    assert custom.info.name == "CustomPipeline"
    assert shows(
        custom(example()),
        f"""{HEAD} {{
  %0 = nn.conv2d(%x, %weight);
  %1 = multiply(3.0float32, meta[Constant][0]);
  %2 = add(%1, %1);
  %3 = multiply(3.0float32, 2.0float32);
  %4 = multiply(%2, %3);
  %5 = add(%0, %4);
  %6 = add(%5, %1);
  %7 = add(%5, %1);
  %8 = add(%6, %7);
  %8
}}""",
    )
    one = CustomPipeline(multiplier=compiler.const(1.0, "float32"))
    assert computes_the_same(one)


def test_print_ir_shows_the_program_between_passes(capsys: pytest.CaptureFixture[str]) -> None:
    seq = compiler.Sequential(
        [
            transform.FoldConstant(),
            compiler.PrintIR(),
            transform.EliminateCommonSubexpr(),
            transform.FuseOps(),
            compiler.PrintIR(),
        ]
    )
    with compiler.PassContext(opt_level=3):
        seq(example())
    first, last = re.split(r"(?m)^(?=def @main)", capsys.readouterr().out)[1:]
    assert canonical(first) == canonical(FOLDED)
    assert canonical(last) == canonical(ONE_ADDITION)
