"""Code is run from a folder only if nobody else can have put it there."""

import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from compiler.codegen import cache
from compiler.files import private_folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    where = tmp_path / "home" / "objects"
    monkeypatch.setenv(cache.VARIABLE, str(where))
    monkeypatch.setattr(private_folder, "_warned", set())
    return where


def test_a_new_folder_is_its_owners(folder: Path) -> None:
    before = os.umask(0)
    try:
        cache.store("a", b"content")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert cache.load("a") == b"content"


@pytest.mark.parametrize("mode", [0o702, 0o720, 0o777, 0o1777])
def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, mode: int) -> None:
    cache.store("a", b"content")
    folder.chmod(mode)
    before = sorted(folder.iterdir())
    with pytest.warns(UserWarning, match=r"cache of compiled code is not used: .* other users"):
        assert cache.load("a") is None
    with warnings.catch_warnings():  # once is enough
        warnings.simplefilter("error")
        assert cache.load("a") is None
        cache.store("b", b"content")
        assert cache.clear() == 0
    assert sorted(folder.iterdir()) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
@pytest.mark.parametrize("linked", [False, True])
def test_a_folder_of_somebody_else_is_not_used(folder: Path, linked: bool) -> None:
    theirs = folder.with_name("theirs") if linked else folder
    theirs.mkdir(parents=True)
    if linked:
        folder.symlink_to(theirs)
    os.chown(theirs, 12345, 12345)
    with pytest.warns(UserWarning, match="belongs to another user"):
        cache.store("a", b"content")
    assert cache.load("a") is None
    assert list(theirs.iterdir()) == []


def test_a_link_to_a_folder_of_ours_is(folder: Path) -> None:
    ours = folder.with_name("ours")
    ours.mkdir(parents=True, mode=0o755)
    folder.symlink_to(ours)
    cache.store("a", b"content")
    assert cache.load("a") == b"content"


def test_a_place_where_no_folder_can_be(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("a file")
    with pytest.warns(UserWarning, match="is not a folder"):
        assert cache.load("a") is None
    cache.store("a", b"content")
    assert folder.read_text() == "a file"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", [False, True])
def test_the_warning_is_one_sentence_without_a_line_of_code(folder: Path, command: bool) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    program = "from compiler.codegen import cache; cache.load('a'); cache.load('b')"
    if command:
        program = (
            "from experiments.cli import main as m; m.run_command = lambda words: "
            f"exec({program!r}); m.main()"
        )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    sentence = f"the cache of compiled code is not used: {folder} can be written by other users\n"
    start = "dtypelab: " if command else "<dtypelab>:1: DtypelabWarning: "
    assert done.stderr == start + sentence
