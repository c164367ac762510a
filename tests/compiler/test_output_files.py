"""Outputs replace files and nothing else."""

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from compiler.errors import ConfigError
from compiler.files import writing
from compiler.files.writing import atomic_path, check_outputs, check_writable, write_whole


def node(path: Path, major: int, minor: int) -> Path:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        path.open("rb").close()
    except OSError:
        pytest.skip("device nodes cannot be made here")
    return path


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640, 0o755])
def test_a_file_keeps_its_mode_and_a_new_one_gets_the_usual(tmp_path: Path, mode: int) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("before")
    old.chmod(mode)
    for path in (old, new):
        write_whole(path, b"after")
        assert path.read_text() == "after"
    assert stat.S_IMODE(old.stat().st_mode) == mode
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(new.stat().st_mode) == 0o666 & ~mask
    assert files(tmp_path) == ["new", "old"]


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    target = tmp_path / "inner" / "target"
    for _ in ("new", "there"):
        for link in (tmp_path / "a", tmp_path / "b"):
            link.unlink(missing_ok=True)
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "b").symlink_to(target)
        write_whole(tmp_path / "a", b"content")
        assert (tmp_path / "a").is_symlink()
        assert (tmp_path / "b").is_symlink()
        assert target.read_bytes() == b"content"
    assert files(tmp_path) == ["a", "b", "inner"]
    assert files(tmp_path / "inner") == ["target"]


@pytest.mark.parametrize("leads_to", ["other", "nothing"])
def test_what_lies_where_a_temporary_will_be_is_not_written_through(
    tmp_path: Path, leads_to: str
) -> None:
    """The name of a temporary under a lock is known beforehand, so anybody may put a link there."""
    path, other = tmp_path / "r.csv", tmp_path / "other"
    other.write_text("not ours")
    (tmp_path / ".r.new.csv").symlink_to(tmp_path / leads_to)
    with atomic_path(path, locked=True) as temporary:
        assert temporary == tmp_path / ".r.new.csv"
        temporary.write_text("content")
    assert (path.read_text(), path.is_symlink()) == ("content", False)
    assert other.read_text() == "not ours"
    assert files(tmp_path) == ["other", "r.csv"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("before")

    def write(error: Exception) -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(ZeroDivisionError):
        write(ZeroDivisionError())
    with pytest.raises(ConfigError, match=r"cannot write .*x\.csv: No space left"):
        write(OSError(errno.ENOSPC, "No space left on device"))
    assert path.read_text() == "before"
    assert files(tmp_path) == ["x.csv"]


def test_devices_are_written_to_and_stay(tmp_path: Path) -> None:
    null, full = node(tmp_path / "null", 1, 3), node(tmp_path / "full", 1, 7)
    write_whole(null, b"content")
    with pytest.raises(ConfigError, match=r"cannot write .*full: No space left on device"):
        write_whole(full, b"content")
    assert stat.S_ISCHR(null.stat().st_mode)
    assert stat.S_ISCHR(full.stat().st_mode)
    with pytest.raises(ConfigError, match="must be a file, to be appended to"):
        check_writable(null, appended=True)
    assert files(tmp_path) == ["full", "null"]


def test_a_fifo_gives_its_reader_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo, content = tmp_path / "fifo", os.urandom(300_000)
    os.mkfifo(fifo)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    write_whole(fifo, content)
    reader.join(20)
    assert read == [content]
    monkeypatch.setattr(writing, "PATIENCE", 0.05)
    with pytest.raises(ConfigError, match="a FIFO that nobody reads"):
        write_whole(fifo, content)
    assert fifo.is_fifo()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc/self/fd")
def test_a_descriptor_is_written_where_it_stands(tmp_path: Path) -> None:
    """What /dev/stdout leads to, also where the shell has put a file behind it."""
    path = tmp_path / "redirected"
    with path.open("wb") as file:
        file.write(b"before ")
        file.flush()
        inode = path.stat().st_ino
        write_whole(f"/proc/self/fd/{file.fileno()}", b"content")
        file.write(b" after")
    assert path.read_bytes() == b"before content after"
    assert path.stat().st_ino == inode
    assert files(tmp_path) == ["redirected"]


@pytest.mark.parametrize("how", ["same", "hard link", "symbolic link", "spelling", "two outputs"])
def test_an_output_that_is_an_input_is_refused_before_any_work(tmp_path: Path, how: str) -> None:
    given, out = tmp_path / "in.csv", tmp_path / "out.csv"
    given.write_text("data")
    inputs: list[Path | None] = [given, None]
    outputs: list[str | Path | None] = [None, out]
    if how == "same":
        outputs = [given]
    elif how == "hard link":
        out.hardlink_to(given)
    elif how == "symbolic link":
        out.symlink_to(given)
    elif how == "spelling":
        outputs = [f"{tmp_path}/./../{tmp_path.name}//in.csv"]
    else:
        outputs = [out, tmp_path / "." / "out.csv"]
    with pytest.raises(ConfigError, match=r"it would be lost|two outputs are one file"):
        check_outputs(outputs, inputs)
    assert given.read_text() == "data"
    check_outputs([tmp_path / "other", tmp_path / "another"], inputs)


def test_places_that_no_file_can_have(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for path, why in (
        ("-", "standard output"),
        ("", "it is a folder"),
        (tmp_path, "it is a folder"),
        (tmp_path / "no" / "x", "there is no folder"),
        (loop, "in a circle"),
        (tmp_path / ("x" * 300), "too long"),
        ("a\0b", "is no path|null byte|null character"),
    ):
        with pytest.raises(ConfigError, match=why):
            check_writable(path)
