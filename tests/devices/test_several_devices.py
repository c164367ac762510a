"""Programs on several devices: one executable runs them, with the bits of one device, and copies
what was planned."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_programs import Program, copied, fewest, programs
from hypothesis import given, settings
from simulated import Simulated, simulated

import compiler
import datatypes
from compiler.boundary.external import _functions
from compiler.ir.devices import Placement
from compiler.ir.expr import Function, IRModule
from compiler.types.dtypes import Array

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "elsewhere"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from machines_here import needs
from test_c_networks import images, network

EMULATED = tuple(
    pytest.param(t, marks=(needs(t), *tier), id=i)
    for t, i, *tier in (
        ("wasm32 -runner=wasmtime", "wasmtime"),
        ("wasm32 -runner=node", "node", pytest.mark.thorough),
        ("aarch64-linux", "aarch64", pytest.mark.thorough),
    )
)
TEXT = """
def @main(%x: Tensor[(N, 4), float32], %w: Tensor[(4, 4), float32]) {
  %a = nn.dense(%x, %w);
  %b = nn.relu(%a);
  %b1 = annotation.on_device(%b, device="dev");
  %c = negative(%b1);
  %c1 = annotation.on_device(%c, device="host");
  %d = add(%c1, %b1);
  %e = split(%d, sizes=[1, 3], axis=1);
  %l = %e.0;
  %l1 = annotation.on_device(%l, device="dev");
  %r = %e.1;
  (%l1, %r, %b)
}
"""


def inputs(rows: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(rows)
    return rng.integers(-9, 9, (rows, 4)).astype(np.float32), np.eye(4, k=1, dtype=np.float32)


def same(got: Any, want: Any) -> None:
    got, want = (y if isinstance(y, list) else [y] for y in (got, want))
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def on(target: str) -> dict[str, Any]:
    if "linux" in target:
        target = f"llvm -mtriple={target}"
    return {"host": "llvm", "dev": target}


def test_a_device_with_memory_of_its_own() -> None:
    mod = compiler.parse(TEXT)
    with simulated("dev") as (dev,):
        exe = compiler.build(mod, target={"host": "llvm"})
        for rows in (3, 1, 5):
            dev.log.clear()
            same(exe(*inputs(rows)), compiler.evaluate(mod, *inputs(rows)))
            n = rows
            assert dev.log == [
                f"put [{n}, 4]", "run @dev_0", f"get [{n}, 4]", f"put [{n}, 4]",
                "run @dev_1", f"get [{n}, 1]", f"get [{n}, 3]",
            ]  # fmt: skip
    assert exe.placements == (
        Placement("dev_0", "dev", ("b",)),
        Placement("dev_1", "dev", ("e", "l1", "r")),
    )
    assert exe.copied is not None
    assert exe.copied.bytes == sum(n * (4 + 4 + 4 + 1 + 3) * 4 for n in (3, 1, 5))


@pytest.mark.parametrize(
    "target", ["llvm", pytest.param("c", marks=pytest.mark.thorough), *EMULATED]
)
def test_targets_as_devices(target: str) -> None:
    mod = compiler.parse(TEXT)
    exe = compiler.build(mod, target=on(target))
    for rows in (3, 1):
        same(exe(*inputs(rows)), compiler.evaluate(mod, *inputs(rows)))
    planned = compiler.plan_devices(mod, on(target))
    same(compiler.build(planned, target=on(target))(*inputs(2)), compiler.evaluate(mod, *inputs(2)))
    again = compiler.parse(planned.astext(show_meta_data=True))
    same(compiler.build(again, target=on(target))(*inputs(2)), compiler.evaluate(mod, *inputs(2)))
    same(compiler.build(planned)(*inputs(2)), compiler.evaluate(mod, *inputs(2)))  # a target alone


@settings(max_examples=4)
@given(programs())
def test_random_programs_copy_what_was_planned(program: Program) -> None:
    mod = program.module()
    x = np.random.default_rng(0).normal(size=(2, 2, 6)).astype(np.float32)
    with simulated("a", "b"):
        planned = compiler.plan_devices(mod)
        exe = compiler.build(mod, target={"host": "llvm"})
        same(exe(*x), compiler.evaluate(mod, *x))
    moved = exe.copied.bytes if exe.copied else 0
    assert moved == copied(planned) == fewest(program)


FIRST = ("mnist_mlp", "int8", "wasm32 -runner=wasmtime")
"""What the first tier runs of `test_networks`."""
NETWORKS = [
    pytest.param(
        name, fmt, t.values[0], id=f"{name}-{fmt}-{t.id}",
        marks=t.marks if (name, fmt, t.values[0]) == FIRST else (*t.marks, pytest.mark.thorough),
    )
    for name in ("mnist_mlp", "mnist_dwsep")
    for fmt in ("int8", "posit16_es1", "float8_e4m3fn")
    for t in (pytest.param("llvm", id="llvm"), *EMULATED)
]  # fmt: skip


@pytest.mark.parametrize(("name", "fmt", "target"), NETWORKS)
def test_networks(name: str, fmt: str, target: str) -> None:
    """Every other layer elsewhere: the bits of one device."""
    mod, x = network(name, fmt), images(100, 3)
    contractions = [
        n
        for b in compiler.transform.prepare(mod).main.bindings
        if getattr(getattr(b.value, "op", None), "name", "") in ("nn.conv2d", "nn.dense")
        for n in b.origins
    ]
    placed = compiler.place(mod, dict.fromkeys(contractions[::2], "dev"))
    exe = compiler.build(placed, target=on(target))
    assert exe.placements
    assert {n for p in exe.placements for n in p.nodes} >= {*contractions[::2]}
    same(exe(x), compiler.build(mod)(x))


def test_a_format_of_integers_crosses_as_codes() -> None:
    mod = datatypes.change_dtype(compiler.parse(TEXT), "float32", "posit8_es0")
    with simulated("dev") as (dev,):
        exe = compiler.build(mod, target={"host": "llvm"})
        same(exe(*inputs(3)), compiler.evaluate(mod, *inputs(3)))
    assert dev.log.count("run @dev_0") == 1


@pytest.mark.thorough
def test_random_roundings_are_those_of_one_device() -> None:
    mod, x = network("mnist_mlp", "float32"), images(0, 2)
    mod = datatypes.change_dtype(mod, "float32", "bfloat16_stochastic")
    exe = compiler.build(compiler.place(mod, {"node_relu": "dev"}), target=on("llvm"))
    assert exe.placements
    same(exe(x), compiler.build(mod)(x))


def test_what_draws_random_bits_is_the_hosts() -> None:
    text = """
def @main(%x: Tensor[(2, 4), float32], %draw: Tensor[(), int64], draw="draw") {
  %a = nn.relu(%x);
  %b = add(%a, %x);
  %c = exp(%b);
  %c
}
"""
    mod = datatypes.change_dtype(compiler.parse(text), "float32", "bfloat16_stochastic")
    said = r"device 'dev' cannot compute %b.*: its random bits are drawn by a parameter of main"
    with pytest.raises(compiler.UnsupportedError, match=said):
        compiler.build(compiler.place(mod, {"b": "dev"}), target=on("llvm"))


def test_what_reads_nothing() -> None:
    text = """
def @main(%x: Tensor[(2,), float32]) {
  %a = exp(2.0float32);
  %a1 = annotation.on_device(%a, device="dev");
  %b = add(%a1, %x);
  %b1 = annotation.on_device(%b, device="host");
  %b1
}
"""
    mod, x = compiler.parse(text), np.ones(2, np.float32)
    for context in (compiler.PassContext(), compiler.PassContext(opt_level=0)):
        with context:
            exe = compiler.build(mod, target=on("llvm"))
            np.testing.assert_allclose(exe(x), compiler.evaluate(mod, x), rtol=1e-6)
            assert [p.nodes for p in exe.placements] in ([], [("a",)])


def test_threads_have_values_of_their_own() -> None:
    mod = compiler.parse(TEXT)
    exe = compiler.build(mod, target=on("llvm"), threads=2)
    wrong: list[int] = []

    def run(rows: int) -> None:
        for _ in range(30):
            got, want = exe(*inputs(rows)), compiler.evaluate(mod, *inputs(rows))
            if not all(np.array_equal(a, b) for a, b in zip(got, want, strict=True)):
                wrong.append(rows)

    threads = [threading.Thread(target=run, args=(n,)) for n in (2, 3, 4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.thorough
def test_what_is_registered_goes_with_the_executable() -> None:
    before = set(_functions)
    exe = compiler.build(compiler.parse(TEXT), target=on("llvm"))
    assert set(_functions) > before
    del exe
    gc.collect()
    assert set(_functions) == before


def test_values_on_a_device_go_when_they_have_been_read() -> None:
    alive: set[int] = set()

    class Value:
        def __init__(self, a: Array):
            self.a = a
            alive.add(id(self))
            weakref.finalize(self, alive.discard, id(self))

    def compile_(f: Function, name: str) -> Any:
        mod = IRModule({"main": Function(f.params, f.bindings, f.results)})

        def run(values: Sequence[Value]) -> list[Value]:
            outs = compiler.evaluate(mod, *(v.a for v in values))
            return [Value(a) for a in (outs if isinstance(outs, list) else [outs])]

        return run

    dev = compiler.Device("dev", compile_, lambda a: Value(a.copy()), lambda v: v.a)
    exe = compiler.build(compiler.parse(TEXT), target={"host": "llvm", "dev": dev})
    same(exe(*inputs(3)), compiler.evaluate(compiler.parse(TEXT), *inputs(3)))
    gc.collect()
    assert not alive


# ---- devices that fail ---------------------------------------------------------------------------
def failing(dev: Simulated) -> str:
    """What is said when the program is run."""
    with pytest.raises(compiler.DtypelabError) as raised:
        compiler.build(compiler.parse(TEXT), target={"host": "llvm", "dev": dev.device})(*inputs(3))
    return str(raised.value)


def test_a_device_that_raises_is_named_with_the_node() -> None:
    dev = Simulated("dev")

    def stop(found: list[Any]) -> list[Any]:
        raise OSError("the cable is out")

    dev.broken = stop
    said = "device 'dev', @dev_0 (node b) failed: OSError: the cable is out"
    assert failing(dev) == said


def test_too_few_results() -> None:
    dev = Simulated("dev", broken=lambda found: [])
    assert failing(dev) == "device 'dev', @dev_0 (node b) gave 0 results, and has 1"


def test_results_of_a_wrong_size() -> None:
    dev = Simulated("dev")
    dev.broken = lambda found: [dev.put(np.zeros((2, 9), np.float32)) for _ in found]
    said = (
        "device 'dev' (node b) giving back %b_dev: it is float32[2, 9], and should be float32[3, 4]"
    )
    assert failing(dev) == said


def test_a_device_that_is_not_there() -> None:
    assert failing(Simulated("dev", missing="buy one")) == "device 'dev' cannot run here: buy one"


def test_an_emulator_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(compiler.UnsupportedError, match=r"device 'dev' cannot run here: .*qemu"):
        compiler.build(compiler.parse(TEXT), target=on("riscv64-linux"))


@pytest.mark.thorough
@pytest.mark.parametrize("target", EMULATED[1:])
def test_an_emulator_that_is_killed_in_a_call_is_named(target: str) -> None:
    psutil = pytest.importorskip("psutil")
    lines = "\n".join(f"  %v{k + 1} = nn.dense(%v{k}, %v0);" for k in range(16))
    text = f"def @main(%v0: Tensor[(2048, 2048), float32]) {{\n{lines}\n  %v16\n}}\n"
    mod = compiler.place(compiler.parse(text), {"v*": "dev"})
    exe = compiler.build(mod, target=on(target))
    raised: list[BaseException] = []

    def run() -> None:
        try:
            exe(np.zeros((2048, 2048), np.float32))
        except compiler.DtypelabError as e:
            raised.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    ends = time.monotonic() + 60
    while thread.is_alive() and time.monotonic() < ends:
        time.sleep(0.5)
        for child in psutil.Process().children():
            if child.name().startswith(("node", "qemu-")):
                child.kill()
    thread.join()
    assert str(*raised).startswith("device 'dev', @dev_0 (node v1, v2,")
    assert "failed: " in str(*raised)


# ---- bad input -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({"dev": "llvm"}, "targets of several devices need one called 'host'"),
        ({"host": "llvm", "dve": "llvm"}, "unknown device 'dev'; did you mean 'dve'"),
        ({"host": "llvm", "a b": "llvm"}, "a device's name is letters, digits and '_', not 'a b'"),
        ({"host": "llvm", "dev": "lvm"}, "lvm"),
        ({"host": "wasm32", "dev": "llvm"}, "'host', which calls the other devices, must be this"),
    ],
)
def test_bad_targets(targets: dict[str, Any], message: str) -> None:
    if targets["host" if "host" in targets else "dev"] == "wasm32":
        pytest.importorskip("wasmtime")
    with pytest.raises(compiler.DtypelabError, match=message):
        compiler.build(compiler.parse(TEXT), target=targets)


def test_registering() -> None:
    with simulated("dev") as (dev,):
        with pytest.raises(compiler.ConfigError, match="already registered: pass override=True"):
            compiler.register_device(dev.device)
        compiler.register_device(dev.device, override=True)
    with pytest.raises(compiler.ConfigError, match="'host' is the device that calls the others"):
        compiler.register_device(Simulated("host").device)


def test_what_runs_on_several_devices_is_neither_saved_nor_exported(tmp_path: Path) -> None:
    exe = compiler.build(compiler.parse(TEXT), target=on("llvm"))
    with pytest.raises(compiler.UnsupportedError, match="@dev_0 is computed on device 'dev', and"):
        exe.save(tmp_path / "exe")
    planned = compiler.plan_devices(compiler.parse(TEXT), on("llvm"))
    with pytest.raises(compiler.UnsupportedError, match="device 'dev'"):
        compiler.export(planned, "c", tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('device_copy(%a, src="host", dst="dev")', "nn.relu(%a)"),
         "%a_dev is on device 'host', and %b_dev reads it on 'dev': copy it by device_copy"),
        (("(%l1,", "(%l1_dev,"), "%l1_dev is on device 'dev', and a result of main reads it on 'h"),
        (('src="host", dst="dev"', 'src="dev", dst="host"'), "%a is on device 'host', and %a_dev"),
        (('dst="dev"', 'dst="dve"'), "unknown device 'dve'; did you mean 'dev'"),
        (('device="dev"', 'device="dve"'), "unknown device 'dve'; did you mean 'dev'"),
    ],
)  # fmt: skip
def test_texts_that_read_values_where_they_are_not(change: tuple[str, str], message: str) -> None:
    planned = compiler.plan_devices(compiler.parse(TEXT), on("llvm"))
    text = planned.astext(show_meta_data=True)
    assert change[0] in text
    mod = compiler.parse(text.replace(*change, 1))
    with pytest.raises(compiler.DtypelabError, match=message):
        compiler.build(mod, target=on("llvm"))
