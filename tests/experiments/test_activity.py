"""What exceptions of a user's code say, also those that cannot."""

import types
from pathlib import Path

import pytest

from compiler.errors import ConfigError, InputError
from experiments.cli.main import run_command
from experiments.user_code import activity, adapters

#: What `__str__` of an exception does.
SILENT = ("raise ValueError('no')", "raise SystemExit(0)", "return 7", "raise self")


@pytest.mark.parametrize("does", SILENT)
def test_an_adapter_whose_exception_has_no_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], does: str
) -> None:
    bad = tmp_path / "bad.py"
    text = f"class Odd(Exception):\n    def __str__(self):\n        {does}\n"
    bad.write_text(f"{text}raise Odd\n")
    says = f"adapter {bad} failed: Odd: (its text cannot be had)"
    with pytest.raises(ConfigError) as raised:
        adapters.install(adapters.Adapter.read(bad))
    assert str(raised.value) == says
    assert run_command(["--adapter", str(bad), "zoo"]) == 2
    assert capsys.readouterr().err == f"dtypelab: {says}\n"
    # It may also come out of a verb: whatever is caught last says it too.
    names: dict[str, type[Exception]] = {}
    exec(text, names)
    assert activity.in_words(names["Odd"]()) == "Odd: (its text cannot be had)"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (InputError("the input"), "the input"),
        (MemoryError(), "out of memory"),
        (MemoryError("for x"), "out of memory: for x"),
        (KeyError(), "KeyError"),
        (OSError(5, "broken"), "OSError: [Errno 5] broken"),
    ],
)
def test_what_an_exception_says_behind_the_step_it_came_out_of(
    error: BaseException, says: str
) -> None:
    assert activity.explained(error) == activity.in_words(error) == says
    with pytest.raises(type(error)), activity.at("outside"), activity.at("inside"):
        raise error
    assert activity.explained(error) == f"inside: {says}"
    assert activity.in_words(error) == says


def test_where_a_function_is_written() -> None:
    assert activity.place_of(SILENT) == ""
    assert activity.place_of(types.SimpleNamespace(__code__=7)) == ""
    here = activity.place_of(test_where_a_function_is_written)
    assert here == " (test_where_a_function_is_written of test_activity.py)"
