"""Modules of torch as programs: names, shapes, what is shared, and what is refused. Skipped where
torch is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler

torch = pytest.importorskip("torch")
nn: Any = torch.nn

pytestmark = pytest.mark.thorough


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Any) -> Any:
        return x + self.layers(x)


class Nested(nn.Module):
    def forward(self, pair: Any, *, scale: Any) -> Any:
        a, b = pair
        return {"sum": a + b, "parts": [a * scale, b]}


def call(module: Any, *xs: Any) -> Any:
    with torch.no_grad():
        return module(*xs)


def test_bindings_come_from_modules_by_their_paths() -> None:
    mod = compiler.from_torch(Block(), (torch.zeros(2, 4),))
    assert [(b.var.name, b.origins) for b in mod.main.bindings] == [
        ("layers_0", ("layers.0",)),
        ("layers_1", ("layers.1",)),
        ("layers_2", ("layers.2",)),
        ("add", ("add",)),
    ]
    assert mod.attrs["inputs"] == ("x",)
    assert mod.attrs["outputs"] == ("output",)


def test_one_build_takes_every_batch() -> None:
    batch = torch.export.Dim("batch")
    module = Block()
    mod = compiler.from_torch(module, (torch.zeros(2, 4),), dynamic_shapes=({0: batch},))
    assert "%x: Tensor[(batch, 4), float32]" in str(mod)
    run = compiler.build(mod)
    for n in (1, 2, 7):
        x = torch.randn(n, 4)
        np.testing.assert_allclose(run(x.numpy()), call(module, x), rtol=1e-4, atol=1e-6)


def test_sizes_outside_the_bounds_of_a_dim_are_refused() -> None:
    batch = torch.export.Dim("batch", min=3, max=5)
    mod = compiler.from_torch(Block(), (torch.zeros(4, 4),), dynamic_shapes=({0: batch},))
    run = compiler.build(mod)
    for n in (3, 5):
        assert run(np.zeros((n, 4), "float32")).shape == (n, 4)
    for n in (2, 6):
        with pytest.raises(compiler.InputError, match="the traced module needs"):
            run(np.zeros((n, 4), "float32"))


def test_weights_share_memory_with_those_of_torch() -> None:
    module = Block()
    mod = compiler.from_torch(module, (torch.zeros(2, 4),))
    weight = module.layers[0].weight.detach().numpy()
    held = [a.data for b in mod.main.bindings for a in b.value.args if hasattr(a, "data")]
    assert any(np.shares_memory(weight, a) for a in held)


def test_nested_arguments_and_results_have_names() -> None:
    a, b, scale = torch.randn(3), torch.randn(3), torch.tensor(2.0)
    mod = compiler.from_torch(Nested(), ((a, b),), {"scale": scale})
    assert mod.attrs["inputs"] == ("pair_0", "pair_1", "scale")
    assert mod.attrs["outputs"] == ("sum", "parts_0", "parts_1")
    want = [a + b, a * scale, b]
    got = compiler.build(mod)(a.numpy(), b.numpy(), scale=scale.numpy())
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


def test_an_exported_program_is_taken_as_it_is() -> None:
    module, x = Block(), torch.randn(2, 4)
    program = torch.export.export(module, (x,))
    np.testing.assert_allclose(
        compiler.build(compiler.from_torch(program))(x.numpy()), call(module, x), rtol=1e-5
    )


def test_a_traced_graph_is_imported() -> None:
    module, x = Block(), torch.randn(2, 4)
    mod = compiler.from_fx(torch.fx.symbolic_trace(module), (x,))
    np.testing.assert_allclose(compiler.build(mod)(x.numpy()), call(module, x), rtol=1e-5)
    with pytest.raises(compiler.ModelError, match=r"takes a torch\.fx\.GraphModule, not Block"):
        compiler.from_fx(module, (x,))


def test_bfloat16_goes_in_and_comes_out() -> None:
    module = Block().to(torch.bfloat16)
    x = torch.randn(2, 4).to(torch.bfloat16)
    mod = compiler.from_torch(module, (x,))
    got = compiler.build(mod)(x.view(torch.int16).numpy().view("uint16"))
    want = call(module, x).float().numpy()
    np.testing.assert_allclose(np.asarray(got, "float32"), want, rtol=0.05, atol=0.05)


class Branching(nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


class Unknown(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.linalg.svd(x)[0] + torch.special.bessel_j0(x)


REFUSED: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "no module": (len, (), "takes a torch.nn.Module or an ExportedProgram, not builtin"),
    "too few arguments": (Block(), (), "torch.export cannot trace Block: .*argument"),
    "a branch on data": (Branching(), (torch.ones(3),), "cannot trace Branching"),
    "training": (nn.BatchNorm1d(4), (torch.zeros(2, 4),), r"module.eval\(\)"),
    "dropout": (nn.Dropout(), (torch.zeros(2),), r"module.eval\(\)"),
    "complex numbers": (nn.Identity(), (torch.zeros(2, dtype=torch.complex64),), "torch.complex64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_imported_is_one_sentence(case: str) -> None:
    module, args, message = REFUSED[case]
    with pytest.raises(compiler.DtypelabError, match=message) as error:
        compiler.from_torch(module, args)
    assert "\n" not in str(error.value)


def test_unsupported_operators_are_listed_at_once_with_their_modules() -> None:
    module = nn.Sequential(Unknown())
    with pytest.raises(compiler.UnsupportedError) as error:
        compiler.from_torch(module, (torch.ones(3, 3),))
    text = str(error.value)
    assert text.startswith("unsupported operators: ")
    for part in ("aten.special_bessel_j0 (in '0'", "aten._linalg_svd (in '0'", "nearest supported"):
        assert part in text
