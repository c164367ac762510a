"""A results file as large as the project's recorded ones, with made-up figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results.store import COLUMNS, SCHEMA_VERSION, ResultsFile

#: Network, data, metric, float32's figure, multiply-accumulates, parameters.
MODELS = (
    ("mnist_mlp", "mnist1k", "top1", 0.978, 1e5, 101_770),
    ("mnist_resnet8", "mnist1k", "top1", 0.991, 4e6, 77_000),
    ("mnist_dwsep", "mnist1k", "top1", 0.987, 6e5, 12_000),
    ("ppocr_cls", "words_upright", "top1", 0.97, 1.4e7, 130_000),
    ("ppocr_rec", "words", "ctc_exact", 0.93, 9e8, 2_700_000),
    ("my_reader", "lines", "ctc_cer", 0.021, 2e8, 1_400_000),
    ("my_regressor", "tables", "rmse", 1.37, 3e5, 5_000),
    ("light_squeezenet", "pictures224", "top1~float32", 1.0, 8e8, 1_230_000),
    ("light_resnet50", "pictures224", "top1~float32", 1.0, 4.1e9, 25_500_000),
)
#: Scheme, dtype, calibrator, accumulate, bits, how wrong it is, times as slow as float32.
SCHEMES: tuple[tuple[str, str, str, str, int, float, float], ...] = (
    ("float32", "float32", "", "", 32, 0.0, 1.0),
    ("int8_tensor", "int8", "mse", "", 8, 0.008, 0.36),
    *(("int8_channel", "int8", c, "", 8, e, 0.35) for c, e in (("minmax", 0.006), ("kl", 0.004))),
    *(("int8_channel", "int8", c, "", 8, 0.003, 0.35) for c in ("percentile", "mse")),
    ("int8_channel[requantize=shift]", "int8", "mse", "", 8, 0.011, 0.34),
    ("int8_channel[weight_bits=4,weight_calibrate=mse]", "int8", "mse", "", 4, 0.06, 0.37),
    ("int8_channel[weight_bits=4,weight_rounding=gptq]", "int8", "mse", "", 4, 0.02, 0.37),
    ("bfloat16", "bfloat16", "", "float32", 16, 0.002, 1.3),
    ("float8_e4m3fn", "float8_e4m3fn", "", "float32", 8, 0.015, 1.5),
    ("posit16_es1", "posit16_es1", "", "exact", 16, 0.0004, 3.0),
    ("posit8_es0", "posit8_es0", "", "exact", 8, 0.02, 3.2),
    *((f, f, "", "sequential", 16, 0.001, 9.0) for f in ("bfloat16", "float16", "posit16_es1")),
    *((f, f, "", "sequential", 16, 0.004, 11.0) for f in ("posit16_es2", "fixed16_8")),
    ("takum16", "takum16", "", "sequential", 16, 0.001, 420.0),
    *((f, f, "", "sequential", 8, 0.05, 8.0) for f in ("posit8_es0", "float8_e4m3fn")),
    *((f, f, "", "sequential", 8, 0.2, 60.0) for f in ("posit8_es2", "takum8", "float8_e5m2")),
    ("fixed8_4", "fixed8_4", "", "sequential", 8, 0.6, 7.0),
    ("posit32_es2", "posit32_es2", "", "sequential", 32, 0.0, 48.0),
)
FEW_INPUTS = "posit32_es2"
FAILING = ("light_resnet50", "takum16")


def recorded_like(path: Path, models: int = len(MODELS)) -> int:
    """Write the file, of the first networks; returns its number of rows."""
    file, rng = ResultsFile(path), np.random.default_rng(0)
    rows = [_row(m, s, rng) for m in range(models) for s in range(len(SCHEMES))]
    for row in rows:
        file.append(row)
    return len(rows)


def _row(m: int, s: int, rng: np.random.Generator) -> dict[str, Any]:
    model, dataset, metric, best, macs, parameters = MODELS[m]
    scheme, dtype, calibrator, accumulate, bits, wrong, slow = SCHEMES[s]
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {"config_hash": f"{m:02x}{s:02x}" * 16, "schema_version": SCHEMA_VERSION, "run_id": "r"}
    row |= {"model": model, "dataset": dataset, "metric_name": metric, "n_eval": 1000}
    row |= {"scheme": scheme, "dtype": dtype, "calibrator": calibrator, "accumulate": accumulate}
    row |= {"target": "llvm", "threads": 1, "batch": 1, "seed": 0, "n_calib": 200, "repeat": 0}
    row |= {"cpu": "a processor", "cores": 2, "python": "3.11", "status": "ok", "error": ""}
    less = metric in ("ctc_cer", "rmse")
    if scheme == FEW_INPUTS:  # which happen to be easy ones, for float32 too
        row["n_eval"] = 100
        best = 0.99 * best if less else (1 + best) / 2
    if (model, scheme) == FAILING:
        return row | {"status": "timeout", "error": "took more than 60 seconds"}
    wrong *= rng.uniform(0.5, 1.6) if wrong else 0.0
    figure = best * (1 + 4 * wrong) if less else best * (1 - wrong)
    drop = figure - best if less else best - figure
    half = 0.1 * abs(drop) + 0.002 * best
    ms = (macs * 2.5e-8 + 0.01) * slow * rng.uniform(0.9, 1.1)
    sqnr = -20 * math.log10(wrong) if wrong else math.inf
    return row | {
        "metric": figure, "metric_fp32": best, "metric_drop": drop,
        "metric_drop_low": drop - half, "metric_drop_high": drop + half,
        "p_value": math.exp(-abs(drop) / half), "sqnr_db": sqnr, "cosine": 1 - wrong**2,
        "top1_agreement": None if metric == "rmse" else 1 - wrong,
        "size_bytes": parameters * bits // 8, "macs": int(macs),
        "bit_operations": int(macs) * bits * bits, "activation_bytes": 9000 * bits,
        "energy_uj": macs * bits * bits * 1e-9,
        "traffic_bytes": parameters * bits // 8 + 20000 * bits,
        "energy_memory_uj": parameters * bits * 1e-8,
        "mac_gates": 20.0 * bits * bits, "mac_area_um2": 9.0 * bits * bits,
        "accumulator_bits": 2 * bits + 9, "cycles": int(macs) * bits // 512,
        "latency_ms_min": ms * 0.95, "latency_ms_median": ms, "latency_ms_mean": ms,
        "latency_ms_p90": ms * 1.1, "latency_ms_p99": ms * 1.3, "latency_ms_stdev": ms * 0.05,
        "speedup_vs_fp32": 1 / slow, "speedup_low": 0.98 / slow, "speedup_high": 1.03 / slow,
        "outputs_not_finite": 3 if scheme == "float8_e5m2" else 0,
        "portable_bits": "no" if dtype == "float32" else "yes", "detectable_drop": 0.006,
        "latency_noise": "loaded" if scheme == "takum8" else "none",
    }  # fmt: skip
