"""CPUs of other architectures that have more than the least: dot products and products of matrices
of int8 (Armv8.2 and 8.6), and RISC-V's vectors. Operators, in numbers and in formats, and networks
give the interpreter's results under qemu's user mode emulation."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from machines_here import needs

import compiler

sys.path.extend(
    str(Path(__file__).resolve().parents[1] / room)
    for room in ("codegen", "op", "runtime", "exporting")
)

from c_programs import listed, same_bits
from op_harness import assert_same, contracted, lowered
from test_c_networks import FORMATS, images, network
from test_every_compiler import ALL, named, types_of, wanted

from compiler.op.library import get_op

CPUS = tuple(
    pytest.param(f"llvm -mcpu={cpu}", marks=needs(f"llvm -mcpu={cpu}"), id=cpu)
    for cpu in ("cortex-a76", "neoverse-v1", "generic-rv64gcv")
)
PARTS = 6
NETWORKS = ("mnist_mlp", "mnist_dwsep", "mnist_resnet8")


def cases(part: int, parts: int) -> list[int]:
    """One in so many, without a pattern."""
    order = sorted(range(len(ALL)), key=lambda k: zlib.crc32(named(*ALL[k]).encode()))
    return order[part::parts]


def check(target: str, k: int) -> None:
    """The bits of LLVM's code for no CPU, which are the interpreter's; sums of products of float32
    may be contracted."""
    case, which, fmt = ALL[k]
    mod, args, want = wanted(k)
    op, types = get_op(case.op), types_of(case, case.operand_dtypes(which))
    loose = not fmt and contracted(lowered(op, op.make_attrs(**case.attrs), types))
    got = listed(compiler.build(mod, target=target)(*args))
    for g, w in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype), named(*ALL[k])
        if loose and w.dtype == np.float32:
            assert_same(g, w, tolerant=True)
        else:
            assert same_bits(g, w), named(*ALL[k])


@pytest.mark.thorough
@pytest.mark.parametrize("target", CPUS)
def test_some_operators(target: str) -> None:
    for k in cases(0, 60):
        check(target, k)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("target", CPUS)
def test_every_operator(target: str, part: int) -> None:
    wrong = []
    for k in cases(part, PARTS):
        try:
            check(target, k)
        except Exception as error:  # all are looked at: a run takes many minutes
            wrong.append(f"{named(*ALL[k])}: {type(error).__name__} {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("target", CPUS)
def test_networks(target: str, name: str, fmt: str) -> None:
    mod, x = network(name, fmt), images(100, 3)
    got = compiler.build(mod, target=target)(x)
    if fmt == "float32":
        np.testing.assert_allclose(got, compiler.evaluate(mod, x), rtol=1e-4, atol=1e-4)
        return
    assert same_bits(got, compiler.build(mod, target="llvm -mcpu=generic")(x))
    if name == "mnist_mlp" or fmt == "int8":
        assert same_bits(got, np.asarray(compiler.evaluate(mod, x)))


@pytest.mark.thorough
@pytest.mark.parametrize("target", CPUS)
def test_an_int8_network(target: str) -> None:
    mod, x = network("mnist_dwsep", "int8"), images(100, 3)
    assert same_bits(compiler.build(mod, target=target)(x), np.asarray(compiler.evaluate(mod, x)))
