"""Programs with control flow, compiled for the virtual machine, against the interpreter."""

from collections.abc import Iterator

import numpy as np
import pytest
from language import LOOP, MATCH, PROGRAMS, RECURSION, Program

import compiler
from compiler.boundary.external import remove_func
from compiler.codegen import cache
from compiler.errors import InputError

by_name = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)


def flat(value: object) -> list[np.ndarray]:
    if isinstance(value, list | tuple):
        return [a for x in value for a in flat(x)]
    return [np.asarray(value)]


def agree(exe: compiler.Executable, mod: compiler.IRModule, *inputs: np.ndarray) -> None:
    got, want = flat(exe(*inputs)), flat(compiler.evaluate(mod, *inputs))
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@by_name
@pytest.mark.parametrize("threads", [1, 2])
def test_one_build_runs_every_size_and_branch(program: Program, threads: int) -> None:
    mod = compiler.parse(program.source)
    exe = compiler.build(mod, threads=threads)
    compiled = cache.statistics()["compiled"]
    for size in (1, 2, 5, 6):
        agree(exe, mod, *program.inputs(size))
    assert cache.statistics()["compiled"] == compiled


@by_name
def test_it_tells_what_it_is(program: Program) -> None:
    exe = compiler.build(compiler.parse(program.source))
    text = exe.as_text()
    assert "f0 @main(r0 %" in text
    assert "run region0(" in text
    assert (
        f"regions: {text.count(chr(10) + 'region')} with {len(exe.kernels)} kernels" in exe.stats()
    )


def test_bytecode_reads_like_this() -> None:
    exe = compiler.build(compiler.parse(RECURSION.source))
    wanted = """\
f1 @times(r0 %i: Tensor[(), int64], r1 %a: Tensor[(m, 4), float32]) \
-> Tensor[(m, 4), float32], 7 registers
    0  bind r1: Tensor[(m, 4), float32]
    1  r2 = run region0(r0)
    2  unless r2 goto 8
    3  r4, r5 = run region1(r0, r1)
    4  r6 = call f1(r4, r5)
    5  bind r6: Tensor[(m, 4), float32]
    6  r3 = r6
    7  goto 9
    8  r3 = r1
    9  bind r3: Tensor[(m, 4), float32]
   10  return r3
"""
    assert wanted in exe.as_text()


def test_results_are_arrays_of_their_own() -> None:
    source = """
def @main(%x: Tensor[(3,), float32], %c: Tensor[(), bool]) {
  %y = if (%c) {
    %x
  } else {
    %x
  };
  (%y, %y, %x)
}
"""
    x = np.ones(3, np.float32)
    outs = compiler.build(compiler.parse(source))(x, np.asarray(True))
    for a in outs:
        a += 1
    assert x.max() == 1
    assert all(a.max() == 2 for a in outs)


def test_endless_recursion_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.vm.machine.MOST_FRAMES", 500)
    source = RECURSION.source.replace("subtract(%i, 1int64)", "add(%i, 1int64)")
    exe = compiler.build(compiler.parse(source))
    with pytest.raises(InputError, match="calls are under way"):
        exe(*RECURSION.inputs(2))


def test_sizes_that_contradict_each_other_are_named() -> None:
    source = MATCH.source.replace("%z = add(%y, %y)", "%q = match(%x, Tensor[(m, 2), float32]);"
                                  "%z = add(%y, %q)")  # fmt: skip
    exe = compiler.build(compiler.parse(source))
    x = np.ones((3, 2), np.float32)
    assert exe(x, np.asarray(0)).shape == (3, 2)
    with pytest.raises(InputError, match=r"%q has shape \(3, 2\), but \(m, 2\) with m = 6"):
        exe(x, np.asarray(1))


def test_a_loop_that_never_runs_stacks_nothing() -> None:
    mod = compiler.parse(LOOP.source.replace("multiply(%rows, 0.5float32)", "match(%rows, "
                         "Tensor[(steps, n, 3), float32])"))  # fmt: skip
    x = np.ones((2, 3), np.float32)
    last, rows = compiler.build(mod)(x, np.asarray(0))
    assert rows.shape == (0, 2, 3)
    np.testing.assert_array_equal(last, x)


def test_inputs_may_show_dimensions_in_expressions() -> None:
    source = """
def @main(%x: Tensor[(n*2, 2), float32], %c: Tensor[(), bool]) {
  %s = nn.relu(%x);
  %y = if (%c) {
    %r = reshape(%s, newshape=[n, 4]);
    %r
  } else {
    %r = reshape(%s, newshape=[n, 4]);
    %q = add(%r, %r);
    %q
  };
  %y
}
"""
    mod = compiler.parse(source)
    exe = compiler.build(mod)
    for n in (1, 4):
        x = np.arange(4 * n, dtype=np.float32).reshape(2 * n, 2)
        for c in (True, False):
            agree(exe, mod, x, np.asarray(c))


@pytest.fixture
def seen() -> Iterator[list[float]]:
    """What `test.note` was called with."""
    found: list[float] = []
    compiler.register_func("test.note", lambda x: found.append(float(x[0])))
    yield found
    remove_func("test.note")


def test_functions_with_effects_run_in_order_in_branches_and_loops(seen: list[float]) -> None:
    source = """
def @main(%x: Tensor[(2,), float32], %k: Tensor[(), int64]) {
  %go = less(0int64, %k);
  %s = loop (%go, %i: Tensor[(), int64] = 0int64, %a: Tensor[(2,), float32] = %x) {
    %n = call_packed("test.note", (%a,), ());
    %j = add(%i, 1int64);
    %b = add(%a, %a);
    %again = less(%j, %k);
    (%again, %j, %b)
  };
  %last = %s.1;
  %r = if (%go) {
    %n = call_packed("test.note", (%last,), ());
    %t = negative(%last);
    %u = call_packed("test.note", (%t,), ());
    %t
  } else {
    %u = call_packed("test.note", (%x,), ());
    %x
  };
  %r
}
"""
    mod = compiler.parse(source)
    x = np.ones(2, np.float32)
    for run in (compiler.build(mod), compiler.create_executor("interpret", mod).evaluate()):
        for times, want in ((3, [1, 2, 4, 8, -8]), (0, [1])):
            seen.clear()
            run(x, np.asarray(times))
            assert seen == want
