"""Decoders that are saved and loaded give the bits that they gave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_decoder import IDS, STEPS, system
from tiny_decoders import tiny

import compiler
from compiler.errors import ConfigError, InputError, ModelError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "int8",
        pytest.param("float32", marks=pytest.mark.thorough),
        pytest.param("bfloat16", marks=pytest.mark.thorough),
        pytest.param("posit16_es1", marks=pytest.mark.thorough),
    ],
)
def test_a_loaded_decoder_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    built = compiler.decoder(system(name))
    built.save(tmp_path / "lm.exe")
    loaded = compiler.load_decoder(tmp_path / "lm.exe")
    assert loaded.caches == built.caches
    assert loaded.inputs == built.inputs
    assert loaded.outputs == built.outputs
    first, second = built.session(10, batch=2), loaded.session(10, batch=2)
    for low, high in STEPS:
        ids = IDS[:2, low:high]
        np.testing.assert_array_equal(second(ids), first(ids))
    for c in built.caches:
        np.testing.assert_array_equal(second.cache(c.name), first.cache(c.name))
    with pytest.raises(InputError, match="do not fit: this session has room for 10"):
        second(IDS[:2, :1])


def test_masks_may_be_left_out_of_a_loaded_decoder(tmp_path: Path) -> None:
    built = compiler.decoder(tiny(mask=True))
    built.save(tmp_path / "lm.exe")
    loaded = compiler.load_decoder(tmp_path / "lm.exe")
    np.testing.assert_array_equal(loaded.session(4)(IDS[:1, :3]), built.session(4)(IDS[:1, :3]))


def test_what_is_in_a_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "lm.exe"
    compiler.decoder(system("float32")).save(path)
    with pytest.raises(ModelError, match=r"holds a decoder.*compiler\.load_decoder"):
        compiler.load(path)
    b = FunctionBuilder()
    mod = IRModule({"main": b.finish(b.call("exp", b.param("x", (2,))))})
    compiler.build(mod).save(path)
    with pytest.raises(ModelError, match=r"holds no decoder but an executable.*compiler\.load"):
        compiler.load_decoder(path)
    with pytest.raises(ConfigError, match=r"none.*lm\.exe"):
        compiler.decoder(system("float32")).save(tmp_path / "none" / "lm.exe")
