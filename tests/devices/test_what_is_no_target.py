"""What is given as a target, but is none: one sentence, wherever targets are taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import compiler
from compiler.errors import ConfigError, DtypelabError
from compiler.ir.expr import IRModule

TAKERS: dict[str, Callable[[IRModule, Any, Path], object]] = {
    "build": lambda mod, given, path: compiler.build(mod, given),
    "plan": lambda mod, given, path: compiler.plan_devices(mod, {"host": "llvm", "dev": given}),
    "export": lambda mod, given, path: compiler.export(mod, given, path / "out"),
    "decoder": lambda mod, given, path: compiler.decoder(mod, target=given),
    "tune": lambda mod, given, path: compiler.tune(mod, given, 0.1, log=path / "log.jsonl"),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("given", [5, None, ["llvm"], b"llvm", 1.5, {"host": {"host": "llvm"}}])
def test_other_kinds_than_texts(taker: str, given: object, tmp_path: Path) -> None:
    x = compiler.var("x", (2, 3))
    mod = IRModule({"main": compiler.function([x], compiler.call("exp", x))})
    with pytest.raises(DtypelabError, match=r"a target is (a|one) text"):
        TAKERS[taker](mod, given, tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("taker", sorted(set(TAKERS) - {"build", "plan"}))
def test_several_devices_are_for_build_alone(taker: str, tmp_path: Path) -> None:
    x = compiler.var("x", (2, 3))
    mod = IRModule({"main": compiler.function([x], compiler.call("exp", x))})
    with pytest.raises(ConfigError, match=r"several devices are for compiler\.build"):
        TAKERS[taker](mod, {"host": "llvm", "dev": "c"}, tmp_path)


@pytest.mark.parametrize("name", [1, None, b"dev", "", "a b"])
def test_names_of_devices_are_words(name: Any) -> None:
    x = compiler.var("x", (2, 3))
    mod = IRModule({"main": compiler.function([x], compiler.call("exp", x))})
    with pytest.raises(ConfigError, match="a device's name is letters"):
        compiler.build(mod, {"host": "llvm", name: "llvm"})
