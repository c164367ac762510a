"""Helpers of the tests of the simplifying passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.interpret.graph import evaluate
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, IRModule, Var, calls
from compiler.ir.verifier import verify
from compiler.passes.instruments import VerifyInstrument
from compiler.passes.manager import Pass, PassContext, Sequential

rng = np.random.default_rng(11)


def f(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Normal values."""
    return rng.standard_normal(shape).astype(dtype)


class Net(FunctionBuilder):
    """A builder that gives every binding its name as origin."""

    def op(self, op: str, *args: Any, name: str, **attrs: Any) -> Var:
        """Bind a call; arrays become constants."""
        atoms = [self.const(a) if isinstance(a, np.ndarray) else a for a in args]
        return self.call(op, *atoms, name=name, origins=[name], **attrs)

    def module(self, *results: Atom) -> IRModule:
        """A module whose main returns `results`."""
        mod = IRModule({"main": self.finish(*results)})
        verify(mod)
        return mod


def stats(channels: int, dtype: str = "float32") -> list[np.ndarray]:
    """gamma, beta, mean, var."""
    var = np.abs(f(channels, dtype=dtype)) + np.asarray(0.1, dtype)
    return [f(channels, dtype=dtype), f(channels, dtype=dtype), f(channels, dtype=dtype), var]


def conv(net: Net, x: Any, out: int, groups: int = 1, bias: bool = True, dtype: str = "float32",
         name: str = "conv") -> Var:  # fmt: skip
    channels = x.type.shape[1] // groups
    args = [f(out, channels, 3, 3, dtype=dtype)] + ([f(out, dtype=dtype)] if bias else [])
    return net.op("nn.conv2d", x, *args, name=name, groups=groups, padding=(1, 1, 1, 1))


def apply(pass_: Pass, mod: IRModule) -> IRModule:
    """The module after the pass and those it requires, verified, with the interface checked."""
    with PassContext(instruments=[VerifyInstrument()]):
        out = Sequential([pass_])(mod)
    before, after = mod.main, out.main
    assert before.params == after.params
    assert [str(r) for r in before.results] == [str(r) for r in after.results]
    assert [r.type for r in before.results] == [r.type for r in after.results]
    return out


def same_results(a: IRModule, b: IRModule, *inputs: np.ndarray, tolerance: float = 1e-4) -> None:
    """max|a-b| <= tolerance * max|b| for every output."""
    for x, y in zip(_listed(evaluate(a, *inputs)), _listed(evaluate(b, *inputs)), strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        assert np.abs(x - y).max() <= tolerance * np.abs(y).max()


def _listed(x: Any) -> Sequence[np.ndarray]:
    return x if isinstance(x, list) else [x]


def ops(mod: IRModule) -> list[str]:
    """Names of the operators that main calls, in order."""
    return [str(call.op) for _, call in calls(mod.main)]


def origins(mod: IRModule) -> dict[str, tuple[str, ...]]:
    """Variable name -> origins."""
    return {b.var.name: b.origins for b in mod.main.bindings}
