"""Broken ONNX files for fuzzing: small models of every kind, and random changes to their bytes
and fields. `python onnx_mutations.py COUNT SEED FOLDER` imports COUNT of them in this process,
whose memory is limited, and prints what went wrong as one JSON object."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compiler.errors import DtypelabError
from compiler.frontend.onnx_importer import from_onnx, supported_ops

node = helper.make_node
F = TensorProto.FLOAT
MEMORY = 64 << 20
"""memory_limit of the imports."""
SPARE = 512 << 20
"""Bytes of address space that the process may take beyond what it has when it starts."""
SECONDS = 5

LOCATIONS = [
    "../../etc/passwd", "/etc/passwd", "../w.bin", "link.bin", "w.bin", ".", "", "a/../../w.bin",
    "/dev/zero", "zero.bin", "w.bin\0", "pipe", "none.bin", "/proc/self/mem", "\udcff", "x" * 5000,
]  # fmt: skip
NUMBERS = [
    0, 1, -1, 2, 3, 7, 64, 255, 2**16, 2**31 - 1, -(2**31), 2**32, 2**40, -(2**40), 2**62,
    2**63 - 1, -(2**63),
]  # fmt: skip
REALS = [0.0, -0.0, 1e-45, 1e38, -1e38, float("inf"), -float("inf"), float("nan"), 0.5]


# ---- seeds ---------------------------------------------------------------------------------------
def _model(nodes: Any, inputs: Any, outputs: Any, weights: Any = (), functions: Any = ()) -> Any:
    made = [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs]
    out = [helper.make_empty_tensor_value_info(n) for n in outputs]
    stored = [numpy_helper.from_array(np.asarray(a), n) for n, a in dict(weights).items()]
    g = helper.make_graph(nodes, "g", made, out, stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(g, opset_imports=opsets, ir_version=8, functions=list(functions))


def _net() -> Any:
    w = np.ones((4, 3, 3, 3), np.float32)
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        node("BatchNormalization", ["c", "s", "s", "s", "s"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "m", "b"], ["y"], transB=1),
    ]
    s = np.ones(4, np.float32)
    weights = {"w": w, "b": s, "s": s, "m": np.ones((4, 4), np.float32)}
    return _model(nodes, [("x", F, ["n", 3, 8, 8])], ["y"], weights)


def _shapes() -> Any:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["d"]),
        node("Mul", ["d", "four"], ["e"]),
        node("Concat", ["e", "rest"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["y"]),
        node("ConstantOfShape", ["t"], ["z"]),
        node("Expand", ["y", "t"], ["v"]),
        node("Tile", ["y", "reps"], ["u"]),
        node("Range", ["i0", "i9", "i1"], ["r"]),
        node("Slice", ["y", "zero", "four"], ["q"]),
    ]
    weights = {
        "zero": np.int64([0]), "four": np.int64([4]), "rest": np.int64([-1]),
        "reps": np.int64([2, 3]), "i0": np.int64(0), "i1": np.int64(1), "i9": np.int64(9),
    }  # fmt: skip
    return _model(nodes, [("x", F, [3, 4, 6])], ["y", "z", "v", "u", "r", "q"], weights)


def _tower() -> Any:
    """Products of dimensions, each of the one before with itself."""
    nodes = [node("Shape", ["x"], ["s0"]), node("Add", ["s0", "one"], ["t0"])]
    nodes += [node("Mul", [f"t{k}", f"t{k}"], [f"t{k + 1}"]) for k in range(40)]
    nodes += [node("ConstantOfShape", ["t40"], ["y"])]
    return _model(nodes, [("x", F, ["n"])], ["y"], {"one": np.int64([1])})


def _control() -> Any:
    out = helper.make_empty_tensor_value_info
    step = helper.make_graph(
        [node("Add", ["a", "one"], ["b"]), node("Identity", ["go"], ["again"])], "step",
        [out("i"), out("go"), out("a")], [out("again"), out("b"), out("b")],
    )  # fmt: skip
    then = helper.make_graph([node("Neg", ["x"], ["p"])], "then", [], [out("p")])
    other = helper.make_graph([node("Abs", ["x"], ["q"])], "other", [], [out("q")])
    row = helper.make_graph(
        [node("Add", ["h", "v"], ["h2"]), node("Identity", ["h2"], ["o"])], "row",
        [out("h"), out("v")], [out("h2"), out("o")],
    )  # fmt: skip
    nodes = [
        node("If", ["yes"], ["k"], then_branch=then, else_branch=other),
        node("Loop", ["trips", "yes", "k"], ["l", "ls"], body=step),
        node("Scan", ["zeros", "l"], ["f", "o"], body=row, num_scan_inputs=1),
    ]
    weights = {"yes": np.array(True), "trips": np.int64(3), "one": np.float32(1),
               "zeros": np.zeros(4, np.float32)}  # fmt: skip
    return _model(nodes, [("x", F, [2, 4])], ["f", "o", "ls"], weights)


def _nested(depth: int = 16, loops: int = 4, trips: int = 3) -> Any:
    """Loops inside each other inside If inside If."""
    out = helper.make_empty_tensor_value_info
    inner = helper.make_graph([node("Neg", ["x"], ["v0"])], "b", [], [out("v0")])
    for k in range(depth):
        made = node("If", ["yes"], [f"v{k + 1}"], then_branch=inner, else_branch=inner)
        if k < loops or k >= 8:  # two branches double the file
            made = node("Loop", ["trips", "yes"], [f"v{k + 1}"], body=_body(inner, k))
            made.input[0] = "trips" if k < loops else "one"
        inner = helper.make_graph([made], "b", [], [out(f"v{k + 1}")])
    weights = {"yes": np.array(True), "trips": np.int64(trips), "one": np.int64(1)}
    return _model(inner.node, [("x", F, [2])], [inner.output[0].name], weights)


def _body(inner: Any, k: int) -> Any:
    out = helper.make_empty_tensor_value_info
    nodes = [*inner.node, node("Identity", [f"g{k}"], [f"a{k}"])]
    return helper.make_graph(
        nodes, "b", [out(f"i{k}"), out(f"g{k}")], [out(f"a{k}"), out(inner.output[0].name)]
    )


def _functions() -> Any:
    """Local functions, each calling the next one twice."""

    def double(name: str, callee: str, domain: str) -> Any:
        nodes = [
            node(callee, ["a"], ["b"], domain=domain),
            node(callee, ["b"], ["c"], domain=domain),
        ]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        return helper.make_function("own", name, ["a"], ["c"], nodes, opsets)

    made = [double("f0", "Relu", "")]
    made += [double(f"f{k}", f"f{k - 1}", "own") for k in range(1, 4)]
    return _model([node("f3", ["x"], ["y"], domain="own")], [("x", F, [2])], ["y"], {}, made)


def _recurrent() -> Any:
    w, r = np.ones((1, 8, 3), np.float32), np.ones((1, 8, 2), np.float32)
    nodes = [
        node("LSTM", ["x", "w", "r"], ["y", "h"], hidden_size=2),
        node("QuantizeLinear", ["h", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("TopK", ["d", "k"], ["v", "i"]),
        node("OneHot", ["i", "k", "on"], ["o"]),
        node("Softmax", ["d"], ["m"]),
        node("Einsum", ["m", "m"], ["e"], equation="abc,abc->ab"),
        node("CumSum", ["e", "zero"], ["c"]),
        node("Gelu", ["d"], ["u"]),
        node("LayerNormalization", ["d", "on"], ["n"]),
    ]
    weights = {"w": w, "r": r, "s": np.float32(0.1), "z": np.uint8(3), "k": np.int64([1]),
               "on": np.float32([0, 1]), "zero": np.int64(0)}  # fmt: skip
    out = _model(nodes, [("x", F, [5, 2, 3])], ["v", "o", "c", "u", "n"], weights)
    out.opset_import[0].version = 20
    return out


def _windows() -> Any:
    nodes = [
        node("ConvTranspose", ["x", "w"], ["t"], strides=[2, 2]),
        node("Resize", ["t", "", "scales"], ["z"], mode="linear"),
        node("MaxPool", ["x"], ["p", "i"], kernel_shape=[2, 2]),
        node("MaxUnpool", ["p", "i"], ["u"], kernel_shape=[2, 2]),
        node("LpPool", ["x"], ["l"], kernel_shape=[2, 2]),
        node("Pad", ["x", "pads"], ["b"], mode="reflect"),
        node("Split", ["x"], ["s1", "s2"], axis=1),
        node("ScatterElements", ["x", "at", "x"], ["e"], axis=1),
        node("Trilu", ["x"], ["a"]),
        node("EyeLike", ["m"], ["y"]),
    ]
    weights = {"w": np.ones((4, 2, 3, 3), np.float32), "scales": np.float32([1, 1, 2, 2]),
               "pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]), "m": np.ones((2, 3), np.float32),
               "at": np.zeros((1, 4, 6, 6), np.int64)}  # fmt: skip
    outputs = ["z", "u", "l", "b", "s1", "e", "a", "y"]
    return _model(nodes, [("x", F, [1, 4, 6, 6])], outputs, weights)


def _external() -> Any:
    out = _model([node("Add", ["x", "w"], ["y"])], [("x", F, [3])], ["y"], {"w": np.ones(3, "f")})
    t = out.graph.initializer[0]
    t.ClearField("raw_data")
    t.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", "offset": "4", "length": "12"}.items():
        t.external_data.add(key=key, value=value)
    return out


SEEDS: tuple[Callable[[], Any], ...] = (
    _net, _shapes, _tower, _control, _nested, _functions, _recurrent, _windows, _external,
)  # fmt: skip


# ---- changes -------------------------------------------------------------------------------------
def _bytes(rng: np.random.Generator, data: bytes) -> bytes:
    """The file with some of its bytes changed, left out, doubled, or cut off."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at, n = int(rng.integers(len(out) + 1)), int(rng.integers(1, 9))
        kind = rng.integers(5)
        if kind == 0:
            out[at : at + n] = rng.bytes(len(out[at : at + n]))
        elif kind == 1:
            del out[at : at + n]
        elif kind == 2:
            out[at:at] = rng.bytes(n)
        elif kind == 3:
            out[at:at] = out[at : at + 8 * n]
        else:
            out = out[: max(1, at)]
    return bytes(out)


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for m in [value] if hasattr(value, "ListFields") else value:
                yield from _messages(m)


def _any(rng: np.random.Generator, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def _fresh(rng: np.random.Generator, field: Any, names: list[str]) -> Any:
    """Another value for a field."""
    if field.type == field.TYPE_STRING:
        near = {"op_type": supported_ops(), "value": LOCATIONS + [str(n) for n in NUMBERS]}
        return _any(rng, near.get(field.name, names))
    if field.type == field.TYPE_BYTES:
        return rng.bytes(int(rng.integers(0, 40)))
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return _any(rng, REALS)
    if field.type == field.TYPE_ENUM:
        return int(rng.integers(0, 27))
    return _any(rng, NUMBERS) if rng.random() < 0.7 else int(rng.integers(0, 40))


def _field(rng: np.random.Generator, model: Any) -> None:
    """Change one field somewhere: another value, or one more or fewer of a list."""
    messages = list(_messages(model))
    names = [v for m in messages for f, v in m.ListFields() if f.type == f.TYPE_STRING
             and isinstance(v, str)] + ["", "x" * 100_000, "y"]  # fmt: skip
    names += [s for n in messages if isinstance(n, onnx.NodeProto) for s in [*n.input, *n.output]]
    message = _any(rng, messages)
    fields = list(message.DESCRIPTOR.fields)
    present = [f for f, _ in message.ListFields()]
    field = _any(rng, present if present and rng.random() < 0.8 else fields)
    try:
        value = getattr(message, field.name)
        many = hasattr(value, "append") or hasattr(value, "add")
        if field.type == field.TYPE_MESSAGE:
            if many and len(value):
                _of_list(rng, value)
            else:
                message.ClearField(field.name)
        elif many:
            if len(value) and rng.random() < 0.7:
                value[int(rng.integers(len(value)))] = _fresh(rng, field, names)
            else:
                value.append(_fresh(rng, field, names))
        else:
            setattr(message, field.name, _fresh(rng, field, names))
    except (ValueError, TypeError, UnicodeError):
        message.ClearField(field.name)  # the field cannot hold it


def _of_list(rng: np.random.Generator, values: Any) -> None:
    """Leave an element out, repeat one, or swap two (nodes: the graph is no longer sorted)."""
    i, j = (int(k) for k in rng.integers(0, len(values), 2))
    kind = rng.integers(3)
    if kind == 0:
        del values[i]
    elif kind == 1:
        values.add().CopyFrom(values[i])
    else:
        held = type(values[i])()
        held.CopyFrom(values[i])
        values[i].CopyFrom(values[j])
        values[j].CopyFrom(held)


def mutated(rng: np.random.Generator) -> bytes:
    """The bytes of a broken model."""
    seed = _any(rng, SEEDS)()
    for _ in range(int(rng.integers(0, 6))):
        _field(rng, seed)
    data: bytes = seed.SerializeToString()
    return _bytes(rng, data) if rng.random() < 0.3 and data else data


# ---- the imports ---------------------------------------------------------------------------------
class Hang(BaseException):
    """An import took too long."""


def outcome(path: Path) -> str:
    """What importing a file came to: "imported", "refused", or what is wrong with how it ended."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        from_onnx(path, memory_limit=MEMORY)
    except DtypelabError as error:
        said = str(error)
        if "\n" in said or not said or len(said) > 3000 or "allocate" in said:
            return f"unclear: {said[:300]!r}"
        return "refused"
    except Hang:
        return f"more than {SECONDS} seconds"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "imported"


def _surroundings(folder: Path) -> Path:
    """A folder for models, with a data file, and with links and a pipe to be refused."""
    inside = folder / "model"
    inside.mkdir()
    (folder / "w.bin").write_bytes(bytes(64))
    (inside / "w.bin").write_bytes(bytes(16))
    (inside / "link.bin").symlink_to(folder / "w.bin")
    (inside / "zero.bin").symlink_to("/dev/zero")
    os.mkfifo(inside / "pipe")
    return inside / "m.onnx"


def main(count: int, seed: int, folder: Path) -> None:
    """Import `count` broken models; print the counts of outcomes, and the failures."""
    path = _surroundings(folder)

    def stop(*_: Any) -> None:
        raise Hang

    signal.signal(signal.SIGPROF, stop)
    for make in SEEDS:  # everything is loaded before memory is limited
        path.write_bytes(make().SerializeToString())
        outcome(path)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, used + SPARE))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counts: dict[str, int] = {}
    failures: dict[str, str] = {}
    slowest = 0.0
    for k in range(count):
        path.write_bytes(mutated(np.random.default_rng([seed, k])))
        start = time.process_time()
        came = outcome(path)
        slowest = max(slowest, time.process_time() - start)
        if came not in ("imported", "refused"):
            failures[str(k)] = came
            came = "failed"
        counts[came] = counts.get(came, 0) + 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    facts = {"counts": counts, "slowest_s": slowest, "grown_kib": grown, "failures": failures}
    print(json.dumps(facts))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
