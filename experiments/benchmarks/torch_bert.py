"""BERT as torch exports it, beside torch itself and onnxruntime: latency, with the dense layers of
queries, keys and values apart and combined. The exported file is kept, for `dtypelab inspect`.

Weights are random: what is compared is time, and that results are torch's. torch runs its own
fused attention (`scaled_dot_product_attention`), eagerly.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from compiler.errors import UnsupportedError
from experiments import files
from experiments.benchmarks import models, peer
from experiments.benchmarks.networks import FLOAT_SQNR_DB, Row
from experiments.benchmarks.turns import Contender, Effort, always, medians
from experiments.measure import metrics
from experiments.measure.disturbance import pinned

Array = NDArray[Any]

WIDTH, HEADS, TOKENS, WORDS = 768, 12, 128, 2000
FEW, LAYERS = 2, 12
COMBINING = "CombineParallelDense"
APART, COMBINED = "layers apart", "layers combined"
TORCH, PEER = "torch", "onnxruntime"
LEAST = {TORCH: 1.0, PEER: 1.05}
"""Least ratio of their time to ours."""


def run(threads: Sequence[int], effort: Effort, whole: bool) -> bool:
    """Measure, print rows, and tell whether all pass; `whole`: all 12 layers.

    Raises:
        UnsupportedError: torch or onnxruntime is not installed.
    """
    peer.onnxruntime()
    layers = LAYERS if whole else FEW
    network, model = exported(layers)
    file = models.folder() / f"torch_bert_{layers}.onnx"
    with files.atomic_path(file) as path:
        path.write_bytes(model)
    click.echo(f"exported to {file}")
    words = np.random.default_rng(0).integers(0, WORDS, (1, TOKENS))
    passed = True
    for count in sorted(threads):
        passed &= _measured(network, model, words, count, layers, effort)
    return passed


def exported(layers: int) -> tuple[Any, bytes]:
    """BERT of so many layers in torch, and the ONNX file that torch writes of it: `input_ids`
    int64 [1, 128] -> `hidden` float32 [1, 128, 768].

    Raises:
        UnsupportedError: torch is not installed.
    """
    torch = needed()
    torch.manual_seed(0)
    network, file = network_of(torch, layers).eval(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.zeros((1, TOKENS), dtype=torch.int64),),
            file,
            dynamo=False,  # the other exporter needs one more package
            input_names=["input_ids"],
            output_names=["hidden"],
        )
    return network, file.getvalue()


def _measured(
    network: Any, model: bytes, words: Array, threads: int, layers: int, effort: Effort
) -> bool:
    import compiler

    torch, module = needed(), compiler.from_onnx(model)
    torch.set_num_threads(threads)
    apart = compiler.build(module, threads=threads)
    with compiler.PassContext(required_pass=[COMBINING]):
        combined = compiler.build(module, threads=threads)
    given = torch.from_numpy(words)

    def eager() -> Any:
        with torch.inference_mode():
            return network(given)

    title = f"{layers} of {LAYERS} layers, {threads} thread{'s' * (threads > 1)}"
    click.echo(f"BERT of torch {torch.__version__}, {title}")
    with pinned(threads):
        reference = eager().numpy()
        sqnr = min(metrics.sqnr_db(e(words), reference) for e in (apart, combined))
        contenders: dict[str, Contender] = {
            APART: always(lambda: apart(words)),
            COMBINED: always(lambda: combined(words)),
            TORCH: always(eager),
            PEER: peer.contender(model, threads, {"input_ids": words}),
        }
        times = medians(contenders, effort)
    for name, value in times.items():
        click.echo(f"  {name:<26} {value:9.3f} ms")
    wrong = "" if sqnr >= FLOAT_SQNR_DB else f"differs from torch: {sqnr:.1f} dB"
    ours = min(times[APART], times[COMBINED])
    rows = [
        Row(f"bert vs {name}, {title}", times[name] / ours, LEAST[name], wrong) for name in LEAST
    ]
    rows.append(Row(f"bert, combined vs apart, {title}", times[APART] / times[COMBINED], None))
    click.echo("\n".join(map(str, rows)) + "\n")
    return all(row.passed for row in rows)


def needed() -> Any:
    """torch.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise UnsupportedError(
            "this benchmark measures against torch: pip install torch"
        ) from error
    return torch


def network_of(torch: Any, layers: int) -> Any:
    """Embeddings and encoder of BERT-base, as its authors' layers are usually written in torch:
    queries, keys and values are dense layers of their own."""
    nn: Any = torch.nn
    module: Any = nn.Module

    class Layer(module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.norms = nn.ModuleList([nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(2)])

        def forward(self, x: Any) -> Any:
            def heads(y: Any) -> Any:
                return y.view(-1, TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2)

            y = nn.functional.scaled_dot_product_attention(
                heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
            )
            y = self.out(y.transpose(1, 2).reshape(-1, TOKENS, WIDTH))
            x = self.norms[0](x + y)
            return self.norms[1](x + self.narrow(nn.functional.gelu(self.wide(x))))

    class Embedding(module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
            self.norm = nn.LayerNorm(WIDTH, eps=1e-12)

        def forward(self, ids: Any) -> Any:
            return self.norm(self.words(ids) + self.places.weight)

    return nn.Sequential(Embedding(), *(Layer() for _ in range(layers)))
