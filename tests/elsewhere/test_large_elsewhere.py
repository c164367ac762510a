"""Networks of users' sizes in int8, exported for other machines and run there: the bits of this
machine's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import compiler
import quantize
from compiler.codegen import linking
from compiler.target.registry import Target
from experiments.benchmarks import models


def program(folder: Path, target: Target) -> Path:
    """The exported main program, linked with the exported object file as its Makefile does."""
    main = linking.object_of_c((folder / "main.c").read_text(), target, ["-I", str(folder), "-O2"])
    content = linking.executable([main, (folder / "net.o").read_bytes()], target, ["-O2"])
    path = folder / "main"
    path.write_bytes(content)
    path.chmod(0o700)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("triple", ["aarch64-linux", "riscv64-linux"])
@pytest.mark.parametrize("name", ["mnist_resnet8", "efficientnet_lite0", "pp_ocrv4_rec"])
def test_exported_networks(tmp_path: Path, name: str, triple: str) -> None:
    target = Target.anywhere(triple)
    emulator = f"qemu-{target.architecture.name}"
    if shutil.which(emulator) is None or linking.missing(target):
        pytest.skip(f"{emulator} or ziglang is not installed")
    path = models.locate(name, {})
    if path is None:
        pytest.skip(f"{name} is not here: {models.MODELS[name].hint}")
    model = models.MODELS[name]
    mod = compiler.from_onnx(path, shapes={models.input_name(path): model.shape})
    integers = quantize.quantize(mod, model.calibration())
    folder = tmp_path / "net"
    compiler.export(integers, target, folder, forms=["object"])
    main = program(folder, target)
    x = model.evaluation()[0]
    x.tofile(folder / "x.bin")
    said = subprocess.run(
        [emulator, main, folder / "x.bin"], capture_output=True, text=True, check=True
    ).stdout
    got = np.array(said.split(), np.float32)
    np.testing.assert_array_equal(got, compiler.build(integers)(x).reshape(-1))
