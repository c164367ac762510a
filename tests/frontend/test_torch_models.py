"""Networks of torchvision and transformers with random weights: outputs are those of torch, at
every batch from one build. Skipped where torch, torchvision or transformers are not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler

torch = pytest.importorskip("torch")
models = pytest.importorskip("torchvision.models")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

SIZES = {"vit_b_32": 224, "maxvit_t": 224, "inception_v3": 96}
"""Sides of images, where 64 is too small."""
CHECKED = (
    "resnet18", "mobilenet_v3_small", "efficientnet_b0", "vit_b_32", "swin_t", "convnext_tiny",
    "densenet121", "deeplabv3_mobilenet_v3_large", "maxvit_t",
)  # fmt: skip


def randomized(module: Any) -> Any:
    """The module in evaluation mode; what is initialized to zeros is not."""
    torch.manual_seed(0)
    with torch.no_grad():
        for p in module.parameters():
            if not p.any():
                p.normal_(std=0.02)
    return module.eval()


def vision(name: str) -> tuple[Any, int]:
    torch.manual_seed(0)
    given: dict[str, Any] = {"weights": None}
    if name in ("googlenet", "inception_v3"):
        given["init_weights"] = False  # takes a minute
    if name.startswith(("deeplab", "fcn", "lraspp")):
        given["weights_backbone"] = None
    return randomized(models.get_model(name, **given)), SIZES.get(name, 64)


def first(x: Any) -> Any:
    """The first of a network's results."""
    if isinstance(x, dict):
        return next(iter(x.values()))
    return x[0] if isinstance(x, tuple | list) else x


def imported(name: str) -> tuple[Any, int, compiler.IRModule]:
    module, side = vision(name)
    shapes = ({0: torch.export.Dim("batch")},)
    mod = compiler.from_torch(module, (torch.randn(2, 3, side, side),), dynamic_shapes=shapes)
    return module, side, mod


@pytest.mark.parametrize("name", CHECKED)
def test_a_network_of_torchvision_gives_torchs_results_at_every_batch(name: str) -> None:
    module, side, mod = imported(name)
    run = compiler.build(mod)
    for n in (1, 3):
        x = torch.randn(n, 3, side, side)
        with torch.no_grad():
            want = first(module(x)).numpy()
        assert np.abs(first(run(x.numpy())) - want).max() <= 1e-4 * np.abs(want).max()


def test_95_percent_of_torchvisions_classifiers_import() -> None:
    names = models.list_models(module=models)
    failed = {}
    for name in names:
        try:
            imported(name)
        except compiler.DtypelabError as error:
            failed[name] = str(error)
    print(f"{len(names) - len(failed)} of {len(names)} import")
    assert len(failed) <= 0.05 * len(names), failed


def language(name: str) -> tuple[Any, dict[str, Any]]:
    t = pytest.importorskip("transformers")
    ids = torch.randint(0, 100, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.int64)
    if name == "bert":
        config = t.BertConfig(
            vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64,
        )  # fmt: skip
        return t.BertModel(config), {"input_ids": ids, "attention_mask": mask}
    if name == "gpt2":
        config = t.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=2, n_positions=64)
        return t.GPT2LMHeadModel(config), {"input_ids": ids, "use_cache": False}
    config = t.LlamaConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    given = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    return t.LlamaForCausalLM(config), given


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_a_language_model_gives_torchs_results_at_every_length(name: str) -> None:
    torch.manual_seed(0)
    module, given = language(name)
    module.eval()
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=64)}
    shapes = {k: sizes if torch.is_tensor(v) else None for k, v in given.items()}
    mod = compiler.from_torch(module, (), given, dynamic_shapes=shapes)
    assert "%input_ids: Tensor[(batch, length), int64]" in str(mod)
    run = compiler.build(mod)
    for batch, length in ((1, 5), (3, 9)):
        tensors = {k: v for k, v in given.items() if torch.is_tensor(v)}
        fed = {k: torch.ones(batch, length, dtype=torch.int64) for k in tensors}
        fed["input_ids"] = torch.randint(0, 100, (batch, length))
        if "attention_mask" in fed:
            fed["attention_mask"][-1, 4:] = 0
        with torch.no_grad():
            want = module(**{**given, **fed})[0].numpy()
        got = first(run(**{k: v.numpy() for k, v in fed.items()}))
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_recurrent_network_gives_torchs_results_at_every_batch(kind: str) -> None:
    torch.manual_seed(0)
    module = getattr(torch.nn, kind)(4, 5, 2, batch_first=True, bidirectional=True).eval()
    shapes = {"input": {0: torch.export.Dim("batch")}}
    mod = compiler.from_torch(module, (torch.randn(2, 7, 4),), dynamic_shapes=shapes)
    run = compiler.build(mod)
    for n in (1, 4):
        x = torch.randn(n, 7, 4)
        with torch.no_grad():
            want = module(x)[0].numpy()
        np.testing.assert_allclose(run(x.numpy())[0], want, rtol=1e-4, atol=1e-6)
