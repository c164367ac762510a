"""Exports as strangers make them: names of any kind, inputs and outputs of every kind, folders that
cannot be written, disks that are full; the files compile in C and C++ without a warning."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from compilers import STRICT

import compiler
from compiler.errors import ConfigError, ModelError
from compiler.files import writing
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.types.dtypes import Array

sys.path.append(str(Path(__file__).resolve().parents[1] / "codegen"))

from c_programs import needs_compiler
from test_c_networks import dense, rows

pytestmark = needs_compiler
NAMES = (
    *("k", "q", "p", "argc", "argv", "class", "this", "new", "template", "operator", "export"),
    *("and", "nullptr", "wchar_t", "linux", "unix", "i386", "printf", "NULL", "EOF", "INT64_MIN"),
    *("NET_ALIGN", "stderr", "errno", "assert", "file", "failed", "memory", "content", "free"),
    *("exit", "strtoll", "bytes", "size_t", "int64_t", "uintptr_t", "main", "net", "net_run"),
    *("net_arena_bytes", "int", "inputs", "outputs", "dims", "arena", "weights", "wrong"),
    *("1x", "a-b", "a_b"),
)
MORE = ["a b", "\u00e9", "argv[1]", '"', "*/", "??/", "x\ny"]
LANGUAGES = (
    ("gcc", "-std=c11"), ("gcc", "-std=gnu11"), ("clang", "-std=c11"), ("g++", "-std=c++11"),
    ("clang++", "-std=c++17", "-Wno-unknown-pragmas"),
)  # fmt: skip
SOMEBODY = 65534
"""A user who owns nothing."""
USER = """#include "net.h"
#include "net.h"
int user(void);
#ifdef NET_WEIGHTS_BYTES
int user(void) { return net_run(0, 0, 0, 0, 0); }
#else
int user(void) { return net_run(0, 0, 0, 0); }
#endif
"""


def named(names: Sequence[str], sized: bool) -> IRModule:
    """exp of each of many inputs; `sized`: their sizes have names, too."""
    b = FunctionBuilder()
    sizes = [Var(n) if sized and n.isidentifier() else 2 for n in names]
    params = [b.param(n, (d,), "float32") for n, d in zip(names, sizes, strict=True)]
    return IRModule({"main": b.finish(*(b.call("exp", p) for p in params))})


def compiles(folder: Path, words: Sequence[str], *files: str) -> None:
    """Without a warning; skipped without that compiler."""
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    for file in files:
        call = [*words, *STRICT, "-O1", "-c", "-o", folder / "x.o", folder / file]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{file}: {done.stderr[:1000]}"


def printed(folder: Path, program: Path, inputs: Sequence[Array], *more: str) -> Array:
    """What the program that comes along prints."""
    words = [str(program), *more]
    for k, a in enumerate(inputs):
        a.tofile(folder / f"{k}.bin")
        words.append(str(folder / f"{k}.bin"))
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return np.array(done.stdout.split(), np.float64)


def made(folder: Path) -> Path:
    subprocess.run(["make", "-s", "-C", folder, "main"], check=True)
    return folder / "main"


@pytest.mark.thorough
def test_names_of_any_kind(tmp_path: Path) -> None:
    names = [*NAMES, *MORE]
    inputs = [np.full(2, k / 50, np.float32) for k in range(len(names))]
    done = compiler.export(named(names, False), "c", tmp_path / "c")
    compiles(done.folder, ["gcc", "-std=gnu11"], "main.c", "net.c")
    got = printed(done.folder, made(done.folder), inputs)
    np.testing.assert_allclose(got, np.exp(np.concatenate(inputs)), rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("weights", ["inside", "file"])
@pytest.mark.parametrize("target", ["c", "llvm"])
@pytest.mark.parametrize("language", LANGUAGES, ids=" ".join)
def test_names_of_any_kind_in_every_language(
    tmp_path: Path, language: Sequence[str], target: str, weights: str, sized: bool
) -> None:
    mod = named([*NAMES, *MORE], sized)
    done = compiler.export(mod, target, tmp_path / "x", weights=weights, force=True)
    if "++" in language[0]:
        (done.folder / "user.cpp").write_text(USER)
        compiles(done.folder, language, "user.cpp")
    else:
        compiles(done.folder, language, "main.c", *(["net.c"] if target == "c" else []))


def test_the_header_is_for_cpp(tmp_path: Path) -> None:
    """Of both kinds of targets, with sizes that are open."""
    for target in ("c", "llvm"):
        folder = compiler.export(dense(), target, tmp_path / target).folder
        (folder / "user.cpp").write_text(USER)
        compiles(folder, ("g++", "-std=c++11"), "user.cpp")


def every_kind() -> tuple[IRModule, list[Array]]:
    """Inputs of every built-in dtype, a scalar, and rows of nothing; all are returned, too."""
    b, outs, values = FunctionBuilder(), [], []
    for dtype in ("int64", "bool", "float16", "float64", "uint8", "int8", "uint64", "float32"):
        for shape in ((3,), (), (0, 2)):
            x = b.param(f"{dtype} {shape}", shape, dtype)
            y = x if dtype == "bool" else b.call("add", x, x)
            outs += [x, y, b.call("cast", y, dtype="float32"), b.call("cast", y, dtype="bool")]
            values.append(np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype))
    return IRModule({"main": b.finish(*outs)}), values


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["c", "llvm"])
def test_inputs_and_outputs_of_every_kind(tmp_path: Path, target: str) -> None:
    mod, values = every_kind()
    form = "source" if target == "c" else "object"
    done = compiler.export(mod, target, tmp_path / "x", forms=[form, "shared"])
    want = [np.asarray(a) for a in compiler.evaluate(mod, *values)]
    for a, b in zip(compiler.load(done.library)(*values), want, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)
    flat = [a.view(np.uint16) if a.dtype == np.float16 else a for a in want]
    got = printed(done.folder, made(done.folder), values)
    np.testing.assert_array_equal(got, np.concatenate([a.reshape(-1) for a in flat]))


def test_without_inputs_and_without_weights(tmp_path: Path) -> None:
    b = FunctionBuilder()
    nothing = IRModule({"main": b.finish(b.call("exp", b.const(np.ones(3, np.float32))))})
    folder = compiler.export(nothing, "c", tmp_path / "a").folder
    compiles(folder, ("gcc", "-std=c11"), "main.c", "net.c")
    assert printed(folder, made(folder), []).astype(np.float32).tolist() == [np.float32(np.e)] * 3
    plain = named(["x"], False)
    done = compiler.export(plain, "c", tmp_path / "b", weights="file", forms=["shared"])
    assert (done.folder / "net_weights.bin").read_bytes() == b""
    assert compiler.load(done.library)(np.zeros(2, np.float32)).tolist() == [1, 1]


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    done = compiler.export(dense(), "c", tmp_path / "x", weights="file", forms=["shared"])
    file = done.folder / "net_weights.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"needs 384 bytes of weights, but .* has 383"):
        compiler.load(done.library)


def test_long_descriptions_are_no_long_strings(tmp_path: Path) -> None:
    mod = named([f"input_{k}" for k in range(60)], False)
    done = compiler.export(mod, "c", tmp_path / "x", forms=["source", "shared"])
    compiles(done.folder, ("gcc", "-std=c11"), "net.c")
    assert len(compiler.load(done.library).inputs) == 60


@pytest.mark.parametrize("name", ["printf", "class", "read", "linux", "net-1", "argc", "x_t", ""])
def test_names_that_functions_cannot_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of the functions in C"):
        compiler.export(dense(), "c", tmp_path / "x", name=name)


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "there" / "net.c").mkdir(parents=True)
    for path, force, message in (
        ("file", True, "is there already: give another path"),
        ("link", True, "is there already: give another path"),
        ("there", True, "net.c: it is a folder"),
        ("x" * 300, False, "File name too long"),
        ("file/x", False, "Not a directory|there is no folder"),
        ("a\0b", False, "null"),
    ):
        with pytest.raises(ConfigError, match=message):
            compiler.export(dense(), "c", tmp_path / path, force=force)
    with pytest.raises(ConfigError, match="cannot write /proc/x"):
        compiler.export(dense(), "c", "/proc/x")
    assert {p.name for p in tmp_path.iterdir()} == {"file", "link", "there"}
    assert (tmp_path / "file").read_text() == "mine"
    done = compiler.export(dense(), "c", tmp_path / "\u00fcn\u00ef $x #1 'q'")
    assert printed(done.folder, made(done.folder), [rows(2)], "2").shape == (14,)


def test_a_folder_in_one_that_cannot_be_written(tmp_path: Path) -> None:
    """A disk of its own, say, in the root folder. Root, who may write anywhere, is somebody else
    meanwhile."""
    compiler.export(dense(), "c", tmp_path / "x")  # what is imported is there then
    before = os.geteuid()
    with tempfile.TemporaryDirectory() as whole:
        above, mine = Path(whole), Path(whole, "mine")
        mine.mkdir()
        if before == 0:
            os.chown(mine, SOMEBODY, -1)
        above.chmod(0o555)
        try:
            os.seteuid(SOMEBODY if before == 0 else before)
            done = compiler.export(dense(), "c", mine, force=True)
            with pytest.raises(ConfigError, match="is not writable"):
                compiler.export(dense(), "c", above / "new")
        finally:
            os.seteuid(before)
            above.chmod(0o755)
        assert {p.name for p in mine.iterdir()} == set(done.files)
        assert [p.name for p in above.iterdir()] == ["mine"]


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python leaves what it can of it
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "net.h").write_text("mine")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for path in ("new", "there"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 11, before[1]))
        try:
            with pytest.raises(ConfigError, match=rf"cannot write .*{path}/net\.c: File too large"):
                compiler.export(dense(), "c", tmp_path / path, force=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name for p in tmp_path.iterdir()] == ["there"]
    assert [p.read_text() for p in (tmp_path / "there").iterdir()] == ["mine"]


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = writing.write_whole, list[Path]()

    def interrupted(path: Path, content: bytes) -> None:
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(writing, "write_whole", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiler.export(dense(), "c", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["c", "llvm"])
def test_cmake(tmp_path: Path, target: str) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    folder = compiler.export(dense(), target, tmp_path / "x y", name="clean").folder
    for words in (["-S", folder, "-B", tmp_path / "out"], ["--build", tmp_path / "out"]):
        subprocess.run(["cmake", *words], check=True, capture_output=True)
    got = printed(folder, tmp_path / "out" / "main", [rows(2)], "2")
    np.testing.assert_array_equal(got, printed(folder, made(folder), [rows(2)], "2"))
