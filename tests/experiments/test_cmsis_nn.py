"""What is said of CMSIS-NN's folder, and the numbers that its layers are held against."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler.arithmetic.arrays import arithmetic
from compiler.errors import InputError
from compiler.op.library import get_op
from compiler.types.dtypes import INT8
from experiments.benchmarks import cmsis_nn
from experiments.benchmarks.microcontrollers import ResNet8


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CMSIS_NN", raising=False)
    assert cmsis_nn.folder() is None
    monkeypatch.setenv("CMSIS_NN", str(tmp_path))
    with pytest.raises(InputError, match="has no folder Source/ConvolutionFunctions"):
        cmsis_nn.folder()
    (tmp_path / "Source/ConvolutionFunctions").mkdir(parents=True)
    assert cmsis_nn.folder() == tmp_path


@pytest.mark.parametrize("name", ["first", "stage1.a", "stage2.short"])
def test_numbers_are_those_of_our_operators(name: str) -> None:
    layer = next(x for x in ResNet8().layers if x.name == name)
    x, w, want = cmsis_nn._example(layer)
    conv, pad = get_op("nn.conv2d"), layer.kernel // 2
    attrs = conv.make_attrs(
        padding=(pad,) * 4, strides=(layer.stride,) * 2, input_zero_point=-128, out_dtype="int32"
    )
    sums = conv.reference(
        arithmetic(INT8), attrs, x.transpose(2, 0, 1)[None], w.transpose(0, 3, 1, 2)
    )
    got = np.clip(np.rint(sums[0] / 2**13) - 128, -128, 127)
    np.testing.assert_array_equal(got.transpose(1, 2, 0), want)
