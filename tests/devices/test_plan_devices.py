"""PlanDevices: programs mean what they meant, annotated values are computed where that is said, and
the fewest bytes are copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_programs import Program, copied, fewest, programs
from hypothesis import given, settings

import compiler
from compiler.ir.devices import DEVICE_COPY, HOST, is_called, placements
from compiler.ir.expr import Call, IRModule, operands
from compiler.pattern import is_op, wildcard
from compiler.transform import (
    DeadCodeElimination,
    InferType,
    PassContext,
    PlanDevices,
    VerifyInstrument,
)

X, Y = np.random.default_rng(0).normal(size=(2, 2, 6)).astype(np.float32)


def anything(*names: str) -> PlanDevices:
    """For devices that compute whatever there is."""
    return PlanDevices({n: lambda call: "" for n in names})


def homes(mod: IRModule) -> dict[str, str]:
    """Where each value is computed, by its name."""
    copies = {b.var.name for b in mod.main.bindings if is_called(b.value, DEVICE_COPY)}
    out = {b.var.name: HOST for b in mod.main.bindings if b.var.name not in copies}
    for p in placements(mod):
        out.update((b.var.name, p.device) for b in mod[p.name].bindings)
    return out


def same(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def check(program: Program) -> None:
    mod = program.module()
    with PassContext(instruments=[VerifyInstrument()]):
        planned = anything("a", "b")(mod)
    assert "on_device" not in planned.astext()
    found = {v.removesuffix("_p"): d for v, d in homes(planned).items()}
    live = {b.var.name.removesuffix("_p") for b in DeadCodeElimination()(mod).main.bindings}
    assert all(found[v] == d for v, d in program.said.items() if v in live)
    assert copied(planned) == fewest(program)
    same(compiler.evaluate(planned, X, Y), compiler.evaluate(mod, X, Y))
    again = InferType()(compiler.parse(planned.astext(show_meta_data=True)))
    assert compiler.structural_equal(planned, again)
    calls = [b.value for b in planned.main.bindings if is_called(b.value, DEVICE_COPY)]
    copies = [(operands(c), c.attrs.dst) for c in calls if isinstance(c, Call)]
    assert len(copies) == len(set(copies))  # to each device once


@pytest.mark.thorough
@settings(max_examples=40)
@given(programs())
def test_random_programs(program: Program) -> None:
    check(program)


@pytest.mark.thorough
@settings(max_examples=1000)
@given(programs(7))
def test_many_random_programs(program: Program) -> None:
    check(program)


TEXT = """
def @main(%x: Tensor[(N, 4), float32], %w: Tensor[(4, 4), float32]) {{
  %a = nn.dense(%x, %w);
  %b = nn.relu(%a);
  %b1 = annotation.on_device(%b, device="{0}");
  %c = exp(%b1);
  %d = add(%c, %b1);
  %d1 = annotation.on_device(%d, device="{1}");
  %e = negative(%d1);
  %e
}}
"""


def plan(first: str, second: str, *names: str) -> IRModule:
    return anything(*names)(InferType()(compiler.parse(TEXT.format(first, second))))


def test_the_text_shows_devices() -> None:
    expected = """
def @main(%x: Tensor[(N, 4), float32], %w: Tensor[(4, 4), float32]) -> Tensor[(N, 4), float32] {
  %a = nn.dense(%x, %w);
  %a_gpu = device_copy(%a, src="host", dst="gpu");
  %b_gpu = @gpu_0(%a_gpu);
  %b = device_copy(%b_gpu, src="gpu", dst="host");
  %b_npu = device_copy(%b, src="host", dst="npu");
  %d_npu = @npu_0(%b_npu);
  %d = device_copy(%d_npu, src="npu", dst="host");
  %e = negative(%d);
  %e
}

def @gpu_0(%a: Tensor[(N, 4), float32], device="gpu") -> Tensor[(N, 4), float32] {
  %b = nn.relu(%a);
  %b
}

def @npu_0(%b: Tensor[(N, 4), float32], device="npu") -> Tensor[(N, 4), float32] {
  %c = exp(%b);
  %d = add(%c, %b);
  %d
}
"""
    mod = plan("gpu", "npu", "gpu", "npu")
    text = "\n".join(line.partition(" /* ty=")[0] for line in mod.astext().splitlines())
    assert text.strip() == expected.strip()


def test_what_waits_for_the_host_is_a_part_of_its_own() -> None:
    """A value that both parts need stays on the device meanwhile."""
    mod = InferType()(
        compiler.parse(
            """
def @main(%x: Tensor[(2, 3), float32]) {
  %a = nn.relu(%x);
  %a1 = annotation.on_device(%a, device="dev");
  %b = exp(%a1);
  %b1 = annotation.on_device(%b, device="host");
  %c = add(%a1, %b1);
  %c1 = annotation.on_device(%c, device="dev");
  %c1
}
"""
        )
    )
    planned = anything("dev")(mod)
    assert [str(p) for p in placements(planned)] == ["@dev_0 on dev: a", "@dev_1 on dev: c1"]
    assert copied(planned) == 4 * 6 * 4  # x, a to the host, b, and c
    same(compiler.evaluate(planned, X[:, :3]), compiler.evaluate(mod, X[:, :3]))


def test_a_program_without_annotations_stays() -> None:
    mod = InferType()(compiler.parse("def @main(%x: Tensor[(2,), float32]) {\n  %x\n}\n"))
    assert anything("dev")(mod) is mod
    assert plan("host", "host", "dev").functions.keys() == {"main"}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("gpu", "dve", "unknown device 'dve'; did you mean 'dev'"),
        ("gpux", "dev", "unknown device 'gpux'; did you mean 'gpu'"),
    ],
)
def test_unknown_devices(first: str, second: str, message: str) -> None:
    with pytest.raises(compiler.ConfigError, match=message):
        plan(first, second, "dev", "gpu")


def test_a_device_that_cannot_compute_it_is_named() -> None:
    mod = InferType()(compiler.parse(TEXT.format("dev", "dev")))

    def lacks_add(call: Call) -> str:
        return "it has no adder" if getattr(call.op, "name", "") == "add" else ""

    said = r"device 'dev' cannot compute %d, add: it has no adder"
    with pytest.raises(compiler.UnsupportedError, match=said):
        PlanDevices({"dev": lacks_add})(mod)
    planned = PlanDevices({"dev": lacks_add})(
        InferType()(compiler.parse(TEXT.format("dev", "host")))
    )
    assert homes(planned)["d"] == HOST


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ('%a = nn.relu(%x); %b = annotation.on_device(%a, device="dev"); '
         '%c = annotation.on_device(%a, device="gpu"); %d = add(%b, %c); %d',
         compiler.InputError, "%a is annotated for device 'dev' and for device 'gpu': keep one"),
        ('%s = split(%x, sizes=[1, 2], axis=0); %p = %s.0; %q = %s.1; '
         '%b = annotation.on_device(%p, device="dev"); '
         '%c = annotation.on_device(%q, device="gpu"); (%b, %c)',
         compiler.InputError, "%s is annotated for device 'dev' and for device 'gpu': keep one"),
        ('%b = annotation.on_device(%x, device="dev"); %c = nn.relu(%b); %c',
         compiler.InputError, "%x is a parameter, which device 'dev' does not compute: annotate"),
        ('%b = annotation.on_device(1.0float32, device="dev"); %c = add(%x, %b); %c',
         compiler.InputError, "%b is a constant, which device 'dev' does not compute"),
        ('%c = if (%f) '
         '{ %r = nn.relu(%x); %b = annotation.on_device(%r, device="dev"); %b } else { %x }; %c',
         compiler.UnsupportedError, "%b of @main is annotated for a device, and only operators of"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned(body: str, error: type[Exception], message: str) -> None:
    text = f"def @main(%x: Tensor[(3,), float32], %f: Tensor[(), bool]) {{ {body} }}"
    with pytest.raises(error, match=message):
        anything("dev", "gpu")(InferType()(compiler.parse(text)))


def test_a_planned_module_is_not_planned_again() -> None:
    planned = plan("dev", "dev", "dev")
    again = compiler.place(planned, {"e": "dev"})
    with pytest.raises(compiler.UnsupportedError, match="@dev_0 is planned for device 'dev' alr"):
        anything("dev")(InferType()(again))


def test_placing_by_name_and_by_pattern() -> None:
    mod = compiler.parse(
        "def @main(%x: Tensor[(2, 4), float32], %w: Tensor[(4, 4), float32]) {\n"
        "  %a = nn.dense(%x, %w);\n  %b = nn.relu(%a);\n  %s = split(%b, sizes=[1, 3], axis=1);\n"
        "  %l = %s.0;\n  %r = %s.1;\n  %e = exp(%l);\n  (%e, %r)\n}\n"
    )
    relu = is_op("nn.relu")(is_op("nn.dense")(wildcard(), wildcard()))
    found = homes(anything("dev")(InferType()(compiler.place(mod, {relu: "dev", "s": "host"}))))
    assert [found[v] for v in "abse"] == ["dev", "dev", "host", "host"]
    found = homes(anything("dev")(InferType()(compiler.place(mod, {"e": "host", "?": "dev"}))))
    assert [found[v] for v in "abse"] == ["dev", "dev", "dev", "host"]
    with pytest.raises(compiler.InputError, match="unknown node 'ee'; did you mean 'e'"):
        compiler.place(mod, {"ee": "dev"})
    with pytest.raises(compiler.InputError, match="nothing in main fits the pattern for device"):
        compiler.place(mod, {is_op("tanh")(wildcard()): "dev"})


def test_results_keep_their_names() -> None:
    text = """
def @main(%x: Tensor[(2, 4), float32]) {
  %a = nn.relu(%x);
  %b = exp(%a);
  %b1 = annotation.on_device(%b, device="dev");
  (%a, %b1, %b1)
}
"""
    mod = InferType()(compiler.parse(text))
    for placed in (mod, InferType()(compiler.place(mod, {"a": "dev"}))):
        assert [str(r) for r in placed.main.results] == ["%a", "%b1", "%b1"]
        planned = anything("dev")(placed)
        compiler.verify(planned)
        assert [str(r) for r in planned.main.results] == ["%a", "%b1", "%b1"]
        same(compiler.evaluate(planned, X[:, :4]), compiler.evaluate(mod, X[:, :4]))


def test_values_are_annotated_as_they_are_written() -> None:
    x = compiler.var("x", (2, 4))
    y = compiler.on_device(compiler.call("nn.relu", x), "dev") + 1.0
    mod = compiler.IRModule({"main": compiler.function([x], y)})
    (placed,) = placements(anything("dev")(InferType()(mod)))
    assert placed.device == "dev"
