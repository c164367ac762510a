"""A datatype nobody anticipated: floats cut (not rounded) to 12 significant bits, 20 bits wide."""

import subprocess
import tempfile
from pathlib import Path

from compiler import build, from_onnx
from datatypes import change_dtype, create_lower_func, load_library, register, register_op
from experiments import zoo
from experiments.data import datasets

C_SOURCE = """
#include <stdint.h>
#include <string.h>
float chop_value(uint32_t a) { float f; a <<= 12; memcpy(&f, &a, 4); return f; }
uint32_t chop_of(float f) { uint32_t a; memcpy(&a, &f, 4); return a >> 12; }
uint32_t chop_add(uint32_t a, uint32_t b) { return chop_of(chop_value(a) + chop_value(b)); }
uint32_t chop_mul(uint32_t a, uint32_t b) { return chop_of(chop_value(a) * chop_value(b)); }
uint32_t chop_div(uint32_t a, uint32_t b) { return chop_of(chop_value(a) / chop_value(b)); }
uint32_t chop_max(uint32_t a, uint32_t b) { return chop_value(a) < chop_value(b) ? b : a; }
"""


def register_chop() -> None:
    """Compile the C functions and register custom[chop]20 with them."""
    folder = Path(tempfile.mkdtemp())
    (folder / "chop.c").write_text(C_SOURCE)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "chop.c", "-ochop.so"], cwd=folder, check=True)
    load_library(folder / "chop.so")
    register("chop")
    for op in ("Add", "Mul", "Div", "Max"):
        register_op(create_lower_func({20: f"chop_{op.lower()}"}), op, "llvm", "chop")
    register_op(create_lower_func({(32, 20): "chop_of"}), "Cast", "llvm", "float", "chop")
    register_op(create_lower_func({(20, 32): "chop_value"}), "Cast", "llvm", "chop", "float")


if __name__ == "__main__":
    register_chop()
    net = change_dtype(from_onnx(zoo.FOLDER / "mnist_resnet8.onnx"), "float32", "custom[chop]20")
    print(build(net)(datasets.load("mnist1k").x[:100]).argmax(axis=1))
