"""Files that are read: files only, within limits, as text of any line ends."""

import os
from pathlib import Path

import pytest

import compiler
from compiler.errors import ConfigError, ModelError
from compiler.files.reading import (
    ARRAYS,
    TEXT,
    VARIABLE,
    limit,
    open_file,
    parse_json,
    read_bytes,
    read_text,
)


def test_text_of_any_line_ends_and_with_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for content in (b"a\nb\n", b"a\r\nb\r\n", b"a\rb\r", b"\xef\xbb\xbfa\nb\n"):
        path.write_bytes(content)
        assert read_text(path, "the text") == "a\nb\n"
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(ConfigError, match=r"cannot read the text .*: line 2 is not UTF-8"):
        read_text(path, "the text")


def test_a_limit_that_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(2000))
    monkeypatch.setenv(VARIABLE, "1 KiB")
    with pytest.raises(ConfigError, match=f"has 2000 bytes, more than 1024; .* {VARIABLE}"):
        read_bytes(path, "the file")
    for given, size in (("2000", 2000), ("2KiB", 2048), ("1GiB", 1 << 30)):
        monkeypatch.setenv(VARIABLE, given)
        assert limit() == limit(ARRAYS) == size
        assert len(read_bytes(path, "the file")) == 2000
    monkeypatch.setenv(VARIABLE, "much")
    for action in (limit, lambda: read_bytes(path, "the file"), lambda: open_file(path, "it")):
        with pytest.raises(ConfigError, match="is no size; write"):  # and no file stays open
            action()
    monkeypatch.delenv(VARIABLE)
    assert (limit(), limit(ARRAYS)) == (TEXT, ARRAYS)


def test_json_that_says_two_things_or_nothing() -> None:
    for text, why in (
        ('{"a": 1, "a": 2}', "has the key 'a' twice"),
        ("[" * 100_000, "nested too deep"),
        ("[" * 60 + "]" * 60, "nested too deep"),
        ("9" * 5000, "is not JSON"),
        ("{", "is not JSON"),
    ):
        with pytest.raises(ConfigError, match=why):
            parse_json(text, "the text")
    assert parse_json('{"a": [{"b": null}]}', "the text") == {"a": [{"b": None}]}


def test_a_model_and_an_executable_are_files(tmp_path: Path) -> None:
    """A FIFO would be waited for."""
    os.mkfifo(tmp_path / "fifo")
    for action in (compiler.from_onnx, compiler.load):
        with pytest.raises(ModelError, match="it is a FIFO"):
            action(tmp_path / "fifo")
