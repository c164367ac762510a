"""The object cache: warm processes compile nothing, and nothing that happens to the folder breaks
a build."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import compiler
from compiler.codegen import cache
from compiler.codegen.llvm import jit
from compiler.target.registry import Target

HOST = Target.parse("llvm")
# Builds a small network, checks its result and prints how many functions it compiled and loaded.
BUILD = """
import numpy as np, compiler
from compiler.codegen import cache
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
b = FunctionBuilder()
x = b.param("x", (2, 3))
y = b.call("nn.dense", x, b.const(np.full((4, 3), 2, np.float32)))
exe = compiler.build(IRModule({"main": b.finish(y)}), threads=2)
assert (exe(np.ones((2, 3), np.float32)) == 6).all()
print(cache.statistics()["compiled"], cache.statistics()["loaded"])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    where = tmp_path / "objects"
    monkeypatch.setenv(cache.VARIABLE, str(where))
    return where


def build() -> tuple[int, int]:
    done = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, check=True)
    compiled, loaded = map(int, done.stdout.split())
    return compiled, loaded


@pytest.mark.thorough
def test_a_second_process_compiles_nothing(folder: Path) -> None:
    compiled, loaded = build()
    assert compiled > 0
    assert loaded == 0
    assert build() == (0, compiled)
    assert compiler.clear_cache() == compiled
    assert list(folder.iterdir()) == []
    assert build() == (compiled, 0)


@pytest.mark.thorough
def test_damaged_entries_are_replaced(folder: Path) -> None:
    compiled, _ = build()
    files = sorted(folder.iterdir())
    contents = [f.read_bytes() for f in files]
    for how in ("flipped", "truncated", "empty", "another"):
        for k, (file, data) in enumerate(zip(files, contents, strict=True)):
            middle = len(data) // 2
            flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            other = contents[k - 1]
            file.write_bytes(
                {"flipped": flipped, "truncated": data[:-1], "empty": b"", "another": other}[how]
            )
        assert build() == (compiled, 0), how
    assert build() == (0, compiled)


@pytest.mark.thorough
def test_two_processes_at_once(folder: Path) -> None:
    both = [
        subprocess.Popen([sys.executable, "-c", BUILD], stdout=subprocess.PIPE) for _ in range(2)
    ]
    sums = {sum(map(int, p.communicate()[0].split())) for p in both}
    assert [p.returncode for p in both] == [0, 0]
    assert build() == (0, sums.pop())
    assert not list(folder.glob("*.part"))


def test_a_killed_writer_leaves_no_entry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at random moments while it writes, then its partial files are cleaned up."""
    code = (
        "from compiler.codegen import cache\nprint(flush=True)\n"
        "while True: cache.store('e', bytes(30_000_000))"
    )
    for delay in (0.0, 0.013, 0.03, 0.05):
        p = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert p.stdout is not None
        p.stdout.readline()
        time.sleep(delay)
        p.send_signal(signal.SIGKILL)
        p.communicate()
        assert cache.load("e") in (None, bytes(30_000_000))
    (folder / "left.part").write_bytes(b"half an ent")
    monkeypatch.setattr(cache, "_ABANDONED", -1.0)
    cache._sizes.clear()
    cache.store("f", b"x")
    assert {p.name for p in folder.iterdir()} <= {"e.obj", "f.obj"}
    assert cache.load("f") == b"x"


@pytest.mark.thorough
def test_an_unusable_folder_means_no_caching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in its place, as nobody, root included, can write below one; and a read-only one."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv(cache.VARIABLE, str(blocked))
    compiled, loaded = build()
    assert (compiled > 0, loaded) == (True, 0)
    assert blocked.read_text() == "not a folder"
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o500)
    monkeypatch.setenv(cache.VARIABLE, str(shut))
    assert sum(build()) == compiled
    assert compiler.clear_cache() >= 0


def test_a_full_disk_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        cache.store("e", b"content")
    assert cache.load("e") is None
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("value", ["", "0"])
def test_turned_off(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(cache.VARIABLE, value)
    assert cache.folder() is None
    cache.store("e", b"content")
    assert cache.load("e") is None
    assert cache.clear() == 0
    assert list(tmp_path.iterdir()) == []


def test_the_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "dtypelab"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / ".cache" / "dtypelab"


def test_the_least_recently_used_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LIMIT", 10_000)
    for k in range(9):
        cache.store(f"e{k}", bytes(1000))
        os.utime(folder / f"e{k}.obj", (1000 + k, 1000 + k))
    assert cache.load("e0") == bytes(1000)  # used just now
    for k in range(9, 30):
        cache.store(f"e{k}", bytes(1000))
        assert sum(f.stat().st_size for f in folder.iterdir()) <= 10_000
        if k == 9:
            assert cache.load("e0") is not None
            assert cache.load("e1") is None
    assert cache.load("e29") is not None


def test_the_key_tells_versions_and_targets_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {cache.key(HOST, "text"), cache.key(HOST, "text2"), cache.key(HOST, "text", "2")}
    v2 = Target("llvm", HOST.triple, "x86-64-v2", HOST.features, HOST.enabled)
    v3 = Target("llvm", HOST.triple, HOST.cpu, "-avx", HOST.enabled)
    keys |= {cache.key(v2, "text"), cache.key(v3, "text")}
    now = cache.versions()
    assert len(now) == 3
    assert re.match(r"\d+\.\d+", now[1])
    for k in range(3):
        changed = tuple(v + "x" if i == k else v for i, v in enumerate(now))
        monkeypatch.setattr(cache, "versions", lambda v=changed: v)
        keys.add(cache.key(HOST, "text"))
    assert len(keys) == 8


def test_the_versions_follow_the_source_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.py", "sub/b.py"):
        (tmp_path / name).write_text("x = 1\n")
    digests = [cache.digest_of(tmp_path)]
    (tmp_path / "notes.txt").write_text("no code")
    assert cache.digest_of(tmp_path) == digests[0]
    for change in (
        lambda: (tmp_path / "sub/b.py").write_text("x = 2\n"),
        lambda: (tmp_path / "sub/b.py").rename(tmp_path / "b.py"),
        lambda: (tmp_path / "a.py").unlink(),
    ):
        change()
        digests.append(cache.digest_of(tmp_path))
    assert len(set(digests)) == 4
    assert cache.versions()[0] == cache.digest_of(Path(compiler.__file__).parent)


def test_a_process_whose_sources_were_edited_shares_no_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it runs is older than the files whose hash is in the key."""
    source = tmp_path / "a.py"
    source.write_text("x = 1\n")
    written = source.stat().st_mtime
    assert cache.changed_since(tmp_path, written - 1)
    assert not cache.changed_since(tmp_path, written)
    os.utime(source, (written + 3600, written + 3600))  # another machine's clock
    assert not cache.changed_since(tmp_path, written - 1)
    usual = cache.key(HOST, "text")
    monkeypatch.setattr(cache, "_edited", lambda: "1f")
    assert cache.key(HOST, "text") != usual


def test_a_missing_c_function_is_named_by_a_cached_entry_too(folder: Path) -> None:
    text = (
        "declare void @absent_in_cache()\n"
        "define void @asks() {\n  call void @absent_in_cache()\n  ret void\n}"
    )
    for _ in range(2):
        with pytest.raises(compiler.LoweringError, match="absent_in_cache"):
            jit.compile_text(text, "asks", HOST)
    assert len(list(folder.iterdir())) == 1


def test_plain_code_computes_the_same_and_has_an_entry_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that only calls other code is not optimized; other code of the same text is."""
    text = "define i64 @NAME(i64 %a) {\n  %b = mul i64 %a, 3\n  ret i64 %b\n}"
    f = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    for plain in (False, True):
        symbol = f"triples_{plain}"
        assert f(jit.compile_text(text.replace("NAME", symbol), symbol, HOST, plain))(14) == 42
    before = set(folder.iterdir())
    asked = []
    monkeypatch.setattr(jit, "object_code", lambda *given: asked.append(given[2]) or b"\n")
    for plain in (False, True, True):
        monkeypatch.setattr(jit, "_addresses", {})
        monkeypatch.setattr(jit, "link", lambda *_: jit._addresses.update({("same", HOST): 1}))
        jit.compile_text(text, "same", HOST, plain)
    assert asked == [False, True]
    assert len(set(folder.iterdir()) - before) == 2
