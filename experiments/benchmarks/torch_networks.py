"""The networks of the benchmark of torch.compile: torchvision's, transformers' and recurrent ones,
with random weights, and an input of each, of a batch of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compiler.errors import UnsupportedError
from experiments.benchmarks import torch_bert

Module = Any

SIZE = 224
"""Side of images."""
TOKENS, WORDS, LAYERS = 128, 2000, 2
"""Of language models."""
STEPS, FEATURES, HIDDEN = 64, 128, 256
"""Of recurrent networks."""
VISION = (
    "resnet18", "mobilenet_v3_large", "efficientnet_b0", "vit_b_32", "swin_t", "convnext_tiny",
    "densenet121", "deeplabv3_mobilenet_v3_large", "maxvit_t",
)  # fmt: skip


def network_of(torch: Any, name: str) -> tuple[Module, Any]:
    """A network in evaluation mode with random weights, and an input of it.

    Raises:
        UnsupportedError: torchvision or transformers is not installed.
    """
    network, x = OTHERS[name](torch) if name in OTHERS else _vision(torch, name)
    for p in network.parameters():  # heads of zeros would give zeros
        if not p.any():
            torch.nn.init.normal_(p, std=0.02)
    return network.eval(), x


def _vision(torch: Any, name: str) -> tuple[Module, Any]:
    try:
        from torchvision import models
    except ImportError as error:
        raise UnsupportedError(
            "this benchmark measures networks of torchvision: pip install torchvision"
        ) from error
    given = {"weights_backbone": None} if name.startswith("deeplab") else {}
    network = models.get_model(name, weights=None, **given)
    image = torch.randn(1, 3, SIZE, SIZE)
    return (_picked(torch, network, "out") if given else network), image


def _bert(torch: Any) -> tuple[Module, Any]:
    network, _ = torch_bert.exported(torch_bert.FEW)
    return network, torch.randint(0, torch_bert.WORDS, (1, torch_bert.TOKENS))


def _gpt2(torch: Any) -> tuple[Module, Any]:
    t = _transformers()
    config = t.GPT2Config(vocab_size=WORDS, n_layer=LAYERS, n_positions=TOKENS)
    return _scores(torch, t.GPT2LMHeadModel(config)), torch.randint(0, WORDS, (1, TOKENS))


def _llama(torch: Any) -> tuple[Module, Any]:
    t = _transformers()
    config = t.LlamaConfig(
        vocab_size=WORDS, hidden_size=512, num_hidden_layers=LAYERS, num_attention_heads=8,
        num_key_value_heads=4, intermediate_size=1408, max_position_embeddings=TOKENS,
    )  # fmt: skip
    return _scores(torch, t.LlamaForCausalLM(config)), torch.randint(0, WORDS, (1, TOKENS))


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UnsupportedError(
            "this benchmark measures networks of transformers: pip install transformers"
        ) from error
    return transformers


def _recurrent(kind: str) -> Callable[[Any], tuple[Module, Any]]:
    def made(torch: Any) -> tuple[Module, Any]:
        network = getattr(torch.nn, kind)(FEATURES, HIDDEN, 2, batch_first=True)
        return _picked(torch, network, 0), torch.randn(1, STEPS, FEATURES)

    return made


def _picked(torch: Any, network: Module, key: Any) -> Module:
    """A network of which one result counts."""
    base: Any = torch.nn.Module

    class Picked(base):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: Any) -> Any:
            return self.network(x)[key]

    return Picked()


def _scores(torch: Any, network: Module) -> Module:
    """A language model that is given ids alone, and gives scores."""
    base: Any = torch.nn.Module

    class Scores(base):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, ids: Any) -> Any:
            mask = torch.ones_like(ids)  # without one, torch has no file for it
            return self.network(input_ids=ids, attention_mask=mask, use_cache=False).logits

    return Scores()


OTHERS: dict[str, Callable[[Any], tuple[Module, Any]]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "lstm": _recurrent("LSTM"),
    "gru": _recurrent("GRU"),
}
"""Name -> a network that torchvision does not have, and an input of it."""
NETWORKS = (*VISION, *OTHERS)
