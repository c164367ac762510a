"""Commands in this process: what they print."""

import json
from typing import Any

import pytest

from experiments.cli.main import run_command

Capture = pytest.CaptureFixture[str]


def succeed(capsys: Capture, *arguments: str) -> str:
    code = run_command(arguments)
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    return captured.out


def as_json(capsys: Capture, *arguments: str) -> dict[str, Any]:
    content = json.loads(succeed(capsys, *arguments, "--json"))
    assert isinstance(content, dict)
    return content
