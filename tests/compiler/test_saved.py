"""Executables in files: they run in another process without compiling; bad files are refused."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language import CLOSURE, LOOP, PROGRAMS, Program

import compiler
import datatypes
from compiler.errors import ConfigError, ModelError
from compiler.saved.codec import decode, encode
from compiler.symbolic import Var as Dim
from compiler.symbolic import imin

RUNNER = """
import sys, numpy as np, compiler
from compiler.codegen import cache
exe = compiler.load(sys.argv[1])
given = np.load(sys.argv[2])
out = exe(*(given[k] for k in sorted(given.files)))
out = out if isinstance(out, list) else [out]
np.savez(sys.argv[3], **{str(k): a for k, a in enumerate(out)})
assert cache.statistics()["compiled"] == 0, cache.statistics()
"""


def network(n: Any = "n") -> compiler.IRModule:
    x = compiler.var("x", (Dim(n) if isinstance(n, str) else n, 3, 8, 8))
    rng = np.random.default_rng(1)
    w = rng.standard_normal((16, 3, 3, 3)).astype(np.float32)
    y = compiler.call("nn.conv2d", x, w, padding=(1, 1, 1, 1))
    y = compiler.call("nn.global_avg_pool2d", compiler.call("nn.relu", y))
    y = compiler.call("nn.dense", compiler.call("flatten", y), w.reshape(27, 16))
    return compiler.IRModule({"main": compiler.function([x], y)})


X = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)


def elsewhere(path: Path, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What a saved executable gives in another process, which has no cache."""
    given, made = path.with_suffix(".in.npz"), path.with_suffix(".out.npz")
    np.savez(given, **{f"{k:02d}": a for k, a in enumerate(inputs)})
    root = Path(__file__).parents[2]
    env = {**os.environ, "DTYPELAB_CACHE_DIR": "0", "PYTHONPATH": str(root)}
    run = [sys.executable, "-c", RUNNER, str(path), str(given), str(made)]
    subprocess.run(run, check=True, env=env, timeout=120)
    with np.load(made) as out:
        return [out[k] for k in sorted(out.files)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_graph_runs_in_another_process_without_compiling(tmp_path: Path, threads: int) -> None:
    exe = compiler.build(network(), threads=threads)
    exe.save(tmp_path / "net.exe")
    if threads == 1:  # the pool's own code is compiled where it starts
        np.testing.assert_array_equal(elsewhere(tmp_path / "net.exe", [X])[0], exe(X))
    again = compiler.load(tmp_path / "net.exe")
    assert (again.inputs, again.outputs) == (exe.inputs, exe.outputs)
    for batch in (1, 2, 5):
        x = np.resize(X, (batch, 3, 8, 8))
        np.testing.assert_array_equal(again(x=x), exe(x))


@pytest.mark.thorough
@pytest.mark.parametrize("program", [LOOP, CLOSURE], ids=lambda p: p.name)
def test_control_flow_runs_in_another_process(tmp_path: Path, program: Program) -> None:
    exe = compiler.build(compiler.parse(program.source))
    exe.save(tmp_path / "flow.exe")
    inputs = program.inputs(3)
    got, want = elsewhere(tmp_path / "flow.exe", inputs), exe(*inputs)
    for a, b in zip(got, want if isinstance(want, list) else [want], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_what_is_loaded_reads_like_what_was_saved(tmp_path: Path, program: Program) -> None:
    exe = compiler.build(compiler.parse(program.source))
    exe.save(tmp_path / "a.exe")
    again = compiler.load(tmp_path / "a.exe")
    assert again.as_text() == exe.as_text()
    assert again.stats() == exe.stats()
    assert again.llvm_text() == exe.llvm_text()
    again.save(tmp_path / "b.exe")
    assert repr(compiler.load(tmp_path / "b.exe")) == repr(exe)


@pytest.mark.thorough
def test_custom_datatypes_and_registered_functions_are_kept(tmp_path: Path) -> None:
    mod = datatypes.change_dtype(network(2), "float32", "posit8_es1")
    exe = compiler.build(mod)
    exe.save(tmp_path / "posit.exe")
    again = compiler.load(tmp_path / "posit.exe")
    np.testing.assert_array_equal(again(X), exe(X))
    assert again.lowerings == exe.lowerings


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a saved file with another manifest."""
    out = path.with_suffix(".changed")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "manifest.json":
                manifest = json.loads(content)
                change(manifest)
                content = json.dumps(manifest).encode()
            target.writestr(name, content)
    return out


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "net.exe"
    compiler.build(network(2)).save(path)
    return path


def huge(manifest: dict[str, Any]) -> None:
    manifest["graphs"][0]["constants"][0][2] = [1 << 40]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format=0), "was saved by another version of dtypelab"),
        (lambda m: m["compiler"].pop(), "was saved by another version of dtypelab"),
        (lambda m: m["needs"].append("amx-tile9"), r"is for another CPU \(needs amx-tile9\)"),
        (lambda m: m["target"].__setitem__(1, "s390x-linux"), "is for s390x-linux"),
        (lambda m: m.pop("graphs"), "is damaged"),
        (lambda m: m["graphs"][0].update(plan=[{"Popen": ["ls"]}]), "there is no class 'Popen'"),
        (lambda m: m["graphs"][0]["entry"].__setitem__(1, "../../etc/passwd"), "is damaged"),
        (huge, "is damaged"),
    ],
)
def test_files_that_do_not_fit_are_refused_in_one_sentence(
    saved: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as e:
        compiler.load(rewritten(saved, change))
    assert "\n" not in str(e.value)
    assert "build the model again" in str(e.value)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read the executable"):
        compiler.load(tmp_path / "nowhere.exe")
    (tmp_path / "text.exe").write_text("hello")
    with pytest.raises(ModelError, match="is no saved executable"):
        compiler.load(tmp_path / "text.exe")


@settings(max_examples=60, deadline=None)
@given(at=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255), cut=st.booleans())
def test_damaged_files_are_refused(saved: Path, at: float, change: int, cut: bool) -> None:
    content = bytearray(saved.read_bytes())
    place = int(at * len(content))
    if cut:
        content = content[:place]
    else:
        content[place] ^= change
    damaged = saved.with_suffix(".damaged")
    damaged.write_bytes(content)
    try:
        exe = compiler.load(damaged)
    except ModelError:
        return
    assert not cut  # a byte of the archive that nobody reads
    np.testing.assert_array_equal(exe(X), compiler.load(saved)(X))


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    exe = compiler.build(network(2))
    with pytest.raises(ConfigError, match=r"cannot write .*there is no folder"):
        exe.save(tmp_path / "no" / "such.exe")
    assert not list(tmp_path.iterdir())


def test_codec_keeps_indices_and_refuses_what_it_does_not_know() -> None:
    n, m = Dim("n"), Dim("m")
    for value in (n, n * 2 + 3, (n + 1) // 4 * 4, imin(n, m) * m, (n - 1) % 3, ((n, 1), "x", None)):
        assert decode(json.loads(json.dumps(encode(value)))) == value
    with pytest.raises(TypeError, match="Path cannot be saved"):
        encode(Path())
