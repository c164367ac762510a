"""Programs of any number of bindings, of the shapes that make careless passes slow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Function, GlobalVar, If, IRModule, Var
from compiler.types.tensor_types import TensorType

SHAPE = (1, 4, 6, 6)
WEIGHT = np.full((4, 4, 1, 1), 0.25, np.float32)
SCALE = np.full((4, 1, 1), 0.5, np.float32)


def _start() -> tuple[FunctionBuilder, Var]:
    b = FunctionBuilder()
    return b, b.param("x", SHAPE)


def chain(n: int) -> IRModule:
    """Operators in a row, all called y."""
    b, y = _start()
    for _ in range(n):
        y = b.call("nn.relu", y, name="y")
    return IRModule({"main": b.finish(y)})


def identities(n: int) -> IRModule:
    """Operators that change nothing."""
    b, y = _start()
    for _ in range(n):
        y = b.call("nn.dropout", y)
    return IRModule({"main": b.finish(y)})


def network(n: int) -> IRModule:
    """Residual blocks of convolution, batch norm, activation and addition."""
    b, y = _start()
    w, s = b.const(WEIGHT), [b.const(np.ones(4, np.float32)) for _ in range(4)]
    for _ in range(n // 4):
        x = y
        y = b.call("nn.batch_norm", b.call("nn.conv2d", y, w), *s)
        y = b.call("add", b.call("nn.relu", y), x)
    return IRModule({"main": b.finish(y)})


def scales(n: int) -> IRModule:
    """Scales behind activations of convolutions."""
    b, y = _start()
    w, s = b.const(WEIGHT), b.const(SCALE)
    for _ in range(n // 3):
        y = b.call("multiply", b.call("nn.relu", b.call("nn.conv2d", y, w)), s)
    return IRModule({"main": b.finish(y)})


def constants(n: int) -> IRModule:
    """Calls on constants."""
    b, y = _start()
    c = b.call("add", b.const(SCALE), b.const(SCALE))
    for _ in range(n):
        c = b.call("negative", c)
    return IRModule({"main": b.finish(b.call("add", y, c))})


def fan(n: int) -> IRModule:
    """One value with many readers, which one operator joins."""
    b, x = _start()
    b_all = [b.call("nn.relu", x) for _ in range(n)]
    return IRModule({"main": b.finish(b.call("concatenate", *b_all, axis=1))})


def diamonds(n: int) -> IRModule:
    """Every value is read twice."""
    b, y = _start()
    for _ in range(n // 2):
        y = b.call("multiply", y, b.call("sigmoid", y))
    return IRModule({"main": b.finish(y)})


def ladder(n: int) -> IRModule:
    """Values that are read near and far: the last one reads the first."""
    b, y = _start()
    values = [y]
    for _ in range(n // 2):
        values.append(b.call("sigmoid", values[-1]))
    for x in reversed(values[:-1]):
        values.append(b.call("add", values[-1], x))
    return IRModule({"main": b.finish(values[-1])})


def branches(n: int) -> IRModule:
    """Convolutions, dense layers and products of the same data."""
    b, x = _start()
    w, d = b.const(WEIGHT), b.const(np.eye(6, dtype=np.float32))
    made = []
    for _ in range(n // 3):
        made += [b.call("nn.conv2d", x, w), b.call("nn.dense", x, d), b.call("nn.matmul", x, d)]
    return IRModule({"main": b.finish(*made)})


def results(n: int) -> IRModule:
    """Many results, each of which changes nothing."""
    b, x = _start()
    made = [b.call("nn.dropout", b.call("sigmoid", x)) for _ in range(n // 2)]
    return IRModule({"main": b.finish(*made)})


def functions(n: int) -> IRModule:
    """Functions of the module, each of which is called once."""
    b, y = _start()
    made: dict[str, Function] = {}
    for k in range(n // 3):
        inner = FunctionBuilder()
        a = inner.param("a", SHAPE)
        made[f"f{k}"] = inner.finish(inner.call("nn.relu", a), attrs={"inline": True})
        y = b.bind(Call(GlobalVar(f"f{k}", made[f"f{k}"].type), (y,)))
    return IRModule({"main": b.finish(y), **made})


def calls(n: int) -> IRModule:
    """Functions of the module, each of which calls the one before."""
    made: dict[str, Function] = {}
    for k in range(n // 2):
        inner = FunctionBuilder()
        y = inner.call("nn.relu", inner.param("a", SHAPE))
        if k:
            y = inner.bind(Call(GlobalVar(f"f{k - 1}", made[f"f{k - 1}"].type), (y,)))
        made[f"f{k}"] = inner.finish(y)
    b, x = _start()
    y = b.bind(Call(GlobalVar(f"f{k}", made[f"f{k}"].type), (x,)))
    return IRModule({"main": b.finish(y), **made})


def closures(n: int) -> IRModule:
    """Closures and branches, one after the other."""
    b, y = _start()
    flag = b.add_param(Var("flag", TensorType.of((), "bool")))
    for _ in range(n // 6):
        inner = FunctionBuilder()
        inner.fresh = b.fresh
        a = inner.add_param(Var(b.fresh("a"), y.type))
        f = b.bind(inner.finish(inner.call("add", a, y)), "f")
        y = b.bind(Call(f, (y,)))
        bodies = []
        for op in ("sigmoid", "nn.relu"):
            body = FunctionBuilder()
            body.fresh = b.fresh
            bodies.append(body.finish(body.call(op, y)))
        y = b.bind(If(flag, *bodies))
    return IRModule({"main": b.finish(y)})


PROGRAMS: dict[str, Callable[[int], IRModule]] = {
    f.__name__: f
    for f in (chain, identities, network, scales, constants, fan, diamonds, ladder, branches,
              results, functions, calls, closures)
}  # fmt: skip
