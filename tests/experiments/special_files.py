"""Paths that are no plain file, or one that nobody expects, for every argument that is a path."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import quantize
from compiler import from_onnx
from experiments.results.store import COLUMNS, SCHEMA_VERSION, ResultsFile

Maker = Callable[[Path], None]
_NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "urandom": (1, 9)}


def _node(name: str) -> Maker:
    return lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(*_NODES[name]))


def _disk(path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFBLK, os.makedev(7, 250))


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        here = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            s.bind(path.name)
        finally:
            os.chdir(here)


def _linked(make: Maker) -> Maker:
    def link(path: Path) -> None:
        target = path.with_name(f"behind{path.suffix}")
        make(target)
        path.symlink_to(target.name)

    return link


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _bomb(path: Path) -> None:
    """A small archive of an array that says it has a terabyte, and one that has 64 GiB of zeros."""
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (274877906944,), }"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        length = len(header).to_bytes(2, "little")
        archive.writestr("input.npy", b"\x93NUMPY\x01\x00" + length + header.encode() + bytes(99))


def _text(content: bytes) -> Maker:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


KINDS: dict[str, Maker] = {
    **{name: _node(name) for name in _NODES},
    "disk": _disk,
    "fifo": os.mkfifo,
    "socket": _socket,
    "folder": Path.mkdir,
    "link to null": _linked(_node("null")),
    "link to a fifo": _linked(os.mkfifo),
    "link to a folder": _linked(Path.mkdir),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": _loop,
    "link to text": _linked(_text(b"text\n")),
    "sparse": _sparse,
    "bomb": _bomb,
    "empty": _text(b""),
    "zeros": _text(bytes(1000)),
    "no text": _text(b"\xff\xfe\xfd" * 50),
    "deep": _text(b"[" * 100_000),
    "brackets": _text(b"x = " + b"[" * 5000 + b"]" * 5000),
    "digits": _text(b"x = " + b"9" * 10_000),
    "one line": _text(b"a" * 3_000_000),
}
"""More than 20 of them."""


def workplace(folder: Path) -> None:
    """The files that the commands below take: net.onnx, x.npz, p.json, c.toml, r.csv, t.toml."""
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.normal(size=(4, 3)).astype(np.float32), "w")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["input", "w"], ["y"], name="product")],
        "net",
        [value("input", TensorProto.FLOAT, ["n", 4])],
        [value("y", TensorProto.FLOAT, ["n", 3])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / "net.onnx")
    x = rng.normal(size=(2, 4)).astype(np.float32)
    np.savez(folder / "x.npz", input=x)
    np.savez(folder / "data.npz", x=x, y=np.zeros(2, np.int64), x_calib=x)
    config = quantize.QConfig(bias_correction="none", smoothing=0.0)
    quantize.calibrate(from_onnx(model), [x], config).to_json(folder / "p.json")
    (folder / "c.toml").write_text('bias_correction = "none"\nsmoothing = 0.0\n')
    (folder / "s.toml").write_text(
        'models = ["net.onnx"]\ndataset = "data.npz"\nschemes = ["float32"]\nn_eval = 2\n'
        'metric = "top1"\n[latency]\nruns = 0\n'
    )
    (folder / "t.toml").write_text('models = ["net.onnx"]\ndataset = "data.npz"\nepochs = 1\n')
    row = {**dict.fromkeys(COLUMNS), "schema_version": SCHEMA_VERSION, "config_hash": "a"}
    row |= {"status": "ok", "model": "net", "scheme": "float32", "metric_name": "top1"}
    ResultsFile(folder / "r.csv").append(row)


_QUICK = "--set bias_correction=none --set smoothing=0.0"
COMMANDS = (
    "inspect @.onnx",
    "inspect net.onnx --graph @.svg",
    "run @.onnx --input x.npz",
    "run net.onnx --input @.npz",
    "run net.onnx --input x.npz --output @.npz",
    f"quantize @.onnx --calib x.npz {_QUICK} -o q.onnx",
    f"quantize net.onnx --calib @.npz {_QUICK} -o q.onnx",
    "quantize net.onnx --calib x.npz --config @.toml -o q.onnx",
    f"quantize net.onnx --calib x.npz {_QUICK} -o @.onnx",
    f"quantize net.onnx --calib x.npz {_QUICK} -o q.onnx --plan @.json",
    "plan show @.json",
    "plan diff p.json @.json",
    "compare @.onnx --input x.npz --plan p.json",
    "compare net.onnx --input @.npz --plan p.json",
    "compare net.onnx --input x.npz --plan @.json",
    "compare net.onnx --input x.npz --plan p.json --csv @.csv",
    "compare net.onnx --input x.npz --plan p.json --picture @.svg",
    "bench @.onnx --runs 1 --warmup 0",
    f"bench net.onnx --runs 1 --warmup 0 --calib @.npz {_QUICK}",
    "bench net.onnx --runs 1 --warmup 0 --calib random --config @.toml",
    "bench net.onnx --runs 1 --warmup 0 --tuned @.jsonl",
    "tune @.onnx --budget 0.01 -o t.jsonl",
    f"tune net.onnx --budget 0.01 --calib @.npz {_QUICK} -o t.jsonl",
    "tune net.onnx --budget 0.01 --calib random --config @.toml -o t.jsonl",
    "tune net.onnx --budget 0.01 -o @.jsonl",
    "dtype show posit8_es0 --plot @.svg",
    "sweep @.toml -o new.csv",
    "sweep s.toml -o @.csv",
    "sweep s.toml -o @.csv --resume",
    "sweep s.toml -o @.csv --dry-run",
    "table @.csv",
    "table @.layers.csv",
    "table @.parquet",
    "table r.csv --compare @.csv",
    "table r.csv --export @.csv",
    "table r.csv --export @.tex",
    "report @.csv -o new.html",
    "report r.csv -o @.html",
    "reproduce @.csv --row 1",
    "zoo mnist_mlp -o @.onnx",
    "train @.toml -o new.csv",
    "train t.toml -o @.csv --dry-run",
    "export @.onnx --target c -o out",
    "export net.onnx --plan @.json --target c -o out",
    "export net.onnx --target llvm -o @.folder",
    "costs @.onnx",
    "costs net.onnx --plan @.json",
    "costs net.onnx --prices @.toml",
    "dtype hardware posit8_es0 --no-synthesis -o @.v",
    "--adapter @.py dtype list",
)
"""Every argument of every verb that is a path; @ is the path."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in what takes longer: what hangs in a system call is interrupted."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def state(folder: Path) -> dict[str, object]:
    """What every path in a folder is, with the content of those that are small files."""
    found: dict[str, object] = {}
    for path in sorted(folder.iterdir()):
        facts = path.lstat()
        small = stat.S_ISREG(facts.st_mode) and facts.st_size < 1 << 22
        found[path.name] = (facts.st_mode, facts.st_rdev, path.read_bytes() if small else None)
    return found
