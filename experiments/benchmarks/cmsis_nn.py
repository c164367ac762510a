"""The same convolutions by CMSIS-NN (Arm's library of kernels, github.com/ARM-software/CMSIS-NN),
whose folder the environment variable CMSIS_NN names: compiled by the same Clang, run on the same
boards, its instructions counted the same way. Nothing of it is part of this project."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compiler.codegen.linking import firmware, object_of_c
from compiler.errors import InputError, MachineError
from compiler.runtime.machines.boards import board_of, linker_script
from compiler.runtime.machines.image import NAME
from compiler.runtime.machines.qemu_arm import OnBoard, harness
from compiler.target.registry import Target
from compiler.types.dtypes import Array

if TYPE_CHECKING:
    from experiments.benchmarks.microcontrollers import Layer

VARIABLE = "CMSIS_NN"
FOLDERS = ("Source/ConvolutionFunctions", "Source/NNSupportFunctions")
CPUS = {"cortex-m55": "cortex_m55+mve_fp"}
"""Clang's names of CPUs that are not theirs with other hyphens."""
_CALL = """
#include "arm_nnfunctions.h"
int %(name)s_run(const void **in, void **out, const int64_t *dims, const void *none, char *a) {
  static int32_t scales[%(outputs)d], shifts[%(outputs)d];
  for (int i = 0; i < %(outputs)d; ++i) scales[i] = 1 << 30, shifts[i] = -12;
  const cmsis_nn_context context = {a, %(arena)d};
  const cmsis_nn_conv_params how = {128, -128, {%(stride)d, %(stride)d}, {%(pad)d, %(pad)d},
                                    {1, 1}, {-128, 127}};
  const cmsis_nn_per_channel_quant_params scale = {scales, shifts};
  const cmsis_nn_dims x = {1, %(given)d, %(given)d, %(inputs)d}, bias = {1, 1, 1, %(outputs)d};
  const cmsis_nn_dims weight = {%(outputs)d, %(kernel)d, %(kernel)d, %(inputs)d};
  const cmsis_nn_dims y = {1, %(size)d, %(size)d, %(outputs)d};
  if (arm_convolve_wrapper_s8_get_buffer_size(&how, &x, &weight, &y) > %(arena)d) return 9;
  return arm_convolve_wrapper_s8(&context, &how, &scale, &x, in[0], &weight, in[1], &bias, in[2],
                                 &y, out[0]);
}
"""
ARENA = 1 << 16


def folder() -> Path | None:
    """Where CMSIS-NN is, if the variable says so.

    Raises:
        InputError: it is not there.
    """
    named = os.environ.get(VARIABLE)
    if named and not Path(named, FOLDERS[0]).is_dir():
        raise InputError(f"{VARIABLE} names {named}, which has no folder {FOLDERS[0]}")
    return Path(named) if named else None


def counted(where: Path, target: Target, layers: Sequence[Layer]) -> Iterator[tuple[Layer, int]]:
    """Convolutions, and the instructions of each.

    Raises:
        LoweringError: CMSIS-NN does not compile.
        MachineError: a layer fails, or gives other numbers than it should.
    """
    board = board_of(target.cpu)
    assert board is not None
    cpu = CPUS.get(target.cpu, target.cpu.replace("-", "_"))
    flags = [f"-mcpu={cpu}", "-O3", "-fno-sanitize=all", f"-I{where / 'Include'}"]
    files = [p for part in FOLDERS for p in sorted((where / part).glob("*_s8*.c"))]
    chosen = [p for p in files if not any(w in p.name for w in ("depthwise", "transpose", "lstm"))]
    library = [object_of_c(p.read_text("utf-8"), target, flags) for p in chosen]
    for layer in layers:
        if layer.kernel == 0:
            continue
        words = dict(vars(layer), name=NAME, arena=ARENA, pad=layer.kernel // 2)
        call = object_of_c(_CALL % {**words, "given": layer.size * layer.stride}, target, flags)
        objects = [*library, call, harness(target, board)]
        loaded = OnBoard(board, firmware(objects, target, linker_script(board)), b"")
        x, w, want = _example(layer)
        out = np.zeros(want.shape, np.int8)
        n = loaded.run([x, w, np.zeros(layer.outputs, np.int32)], [out], [], ARENA)
        if np.abs(out - want).max() > 1:  # it rounds halves upwards, twice
            raise MachineError(f"{layer.name} gives other numbers by CMSIS-NN on {board.name}")
        yield layer, n


def _example(layer: Layer) -> tuple[Array, Array, Array]:
    """Data [y, x, channel], weights [output, y, x, channel], and the result in [-128, 127]."""
    rng, given, pad = np.random.default_rng(0), layer.size * layer.stride, layer.kernel // 2
    x = rng.integers(-128, 128, (given, given, layer.inputs)).astype(np.int8)
    taps = (layer.outputs, layer.kernel, layer.kernel, layer.inputs)
    w = rng.integers(-127, 128, taps).astype(np.int8)
    padded = np.pad(x.astype(np.int64) + 128, ((pad, pad), (pad, pad), (0, 0)))
    window = np.lib.stride_tricks.sliding_window_view(padded, taps[1:3], (0, 1))
    window = window[:: layer.stride, :: layer.stride][: layer.size, : layer.size]
    sums = np.einsum("yxcij,oijc->yxo", window, w.astype(np.int64))
    return x, w, np.clip(np.rint(sums / 2**13) - 128, -128, 127).astype(np.int64)
