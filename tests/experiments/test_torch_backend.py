"""torch.compile with our backend: what it computes, when it compiles anew, and what it refuses.
Skipped where torch is not installed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
import datatypes
import quantize
from experiments.systems import pipeline

torch = pytest.importorskip("torch")
nn: Any = torch.nn

from experiments.torch_backend import arrays, backend  # noqa: E402  (it needs torch)
from experiments.torch_backend.options import Options  # noqa: E402

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend=backend.dtypelab, options=options or None)


def network() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def close(a: Any, b: Any, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(a.detach(), b.detach(), rtol=tolerance, atol=tolerance / 10)


def test_it_computes_what_torch_does_at_every_batch() -> None:
    module = network().eval()
    run = compiled(module)
    with torch.no_grad():
        for n in (4, 2, 7):
            x = torch.randn(n, 8)
            close(run(x), module(x))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        kinds = [{"activation": "relu"}, {"activation": "gelu", "norm_first": True}]
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **kind) for kind in kinds)
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x)[:, -1] if x.shape[1] > 2 else x[:, 0]


def test_open_sizes_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built, build = [], pipeline.build
    monkeypatch.setattr(pipeline, "build", lambda m, *a: built.append(m) or build(m, *a))
    module = Encoder().eval()
    run = torch.compile(module, backend=backend.dtypelab, dynamic=True)
    with torch.no_grad():
        for batch, tokens in ((3, 5), (2, 9), (7, 4)):
            x = torch.randn(batch, tokens, 8)
            close(run(x), module(x))
        assert len(built) == 1
        short = torch.randn(3, 2, 8)  # torch guards what its code asks of sizes
        close(run(short), module(short))


def test_weights_that_change_are_seen() -> None:
    module, x = network().eval(), torch.randn(4, 8)
    run = compiled(module)
    with torch.no_grad():
        close(run(x), module(x))
        module[3].bias.add_(1.0)
        close(run(x), module(x))


class Broken(nn.Module):
    def forward(self, x: Any) -> Any:
        y = x * 2
        return y + 1 if y.sum().item() > 0 else y - 1


def test_a_graph_may_break() -> None:
    module = Broken()
    run = compiled(module)
    with torch.no_grad():
        for x in (torch.ones(3), -torch.ones(3)):
            close(run(x), module(x))


def test_a_tensor_that_the_code_writes_out_is_known() -> None:
    def scaled(x: Any) -> Any:
        return x * torch.tensor([1.0, 2.0, -0.5])

    with torch.no_grad():
        x = torch.randn(4, 3)
        assert torch.equal(compiled(scaled)(x), scaled(x))


def test_a_training_step_has_the_gradients_and_statistics_of_torch() -> None:
    ours, theirs = network(), network()
    theirs.load_state_dict(ours.state_dict())
    run, x = compiled(ours), torch.randn(5, 8)
    for _ in range(2):
        for module, f in ((ours, run), (theirs, theirs)):
            module.zero_grad()
            f(x).square().sum().backward()
            with torch.no_grad():
                for p in module.parameters():
                    p.sub_(p.grad, alpha=0.01)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(a.grad, b.grad, 1e-3)
    close(ours[1].running_var, theirs[1].running_var)


def test_a_format_gives_the_bits_of_our_own_path() -> None:
    module, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), torch.randn(4, 8)
    with torch.no_grad():
        got = compiled(module, dtype="posit8_es0", accumulate="exact")(x)
    mod = compiler.from_torch(module, (x,))
    mod = datatypes.change_dtype(mod, "float32", "posit8_es0", accumulate="exact")
    np.testing.assert_array_equal(got, compiler.build(mod)(x.numpy()))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        return self.narrow(self.wide(x).relu())


def test_a_plan_is_that_of_the_imported_module(tmp_path: Path) -> None:
    module, x = Small(), torch.randn(32, 8)
    mod = compiler.from_torch(module, (x,))
    plan = quantize.calibrate(mod, [x.numpy()])
    plan.to_json(tmp_path / "plan.json")
    with torch.no_grad():
        got = compiled(module, plan=str(tmp_path / "plan.json"))(x)
    want = compiler.build(quantize.realize(mod, plan))(x.numpy())
    np.testing.assert_array_equal(got, want)


class Functional(nn.Module):
    """Weights that no layer has: torch.compile takes these calls apart, torch.export does not."""

    def __init__(self) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.randn(4, 3, 3, 3))
        self.scores = nn.Parameter(torch.randn(5, 4))
        self.square = nn.Parameter(torch.randn(5, 5))
        self.last = nn.Parameter(torch.randn(2, 3))
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(5, 6), nn.ReLU()), nn.Linear(6, 3)])

    def forward(self, x: Any) -> Any:
        x = nn.functional.conv2d(x, self.taps).relu().mean((2, 3))
        x = nn.functional.linear(x, self.scores) @ self.square
        for layer in self.layers:
            x = layer(x)
        return nn.functional.linear(x, self.last)


FUNCTIONAL = Functional()


def called_by_a_function(x: Any) -> Any:
    return FUNCTIONAL(x)


@pytest.mark.parametrize("run", [FUNCTIONAL, called_by_a_function])
def test_a_plan_fits_what_torch_takes_apart(run: Any) -> None:
    x = torch.randn(16, 3, 8, 8)
    mod = compiler.from_torch(FUNCTIONAL, (x,))
    plan = quantize.calibrate(mod, [x.numpy()])
    assert {"conv2d", "linear", "matmul", "layers_0_0", "layers_1", "linear_1"} <= set(plan.nodes)
    with torch.no_grad():
        got = compiled(run, plan=plan)(x)
    want = compiler.build(quantize.realize(mod, plan))(x.numpy())
    np.testing.assert_array_equal(got, want)


def test_a_scheme_is_calibrated_on_the_first_call() -> None:
    module, x = network().eval(), torch.randn(64, 8)
    with torch.no_grad():
        got, want = compiled(module, scheme="int8_channel")(x), module(x)
    error = (got - want).abs().max()
    assert 0 < error < 0.05 * want.abs().max()


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16"])
def test_tensors_and_arrays_share_memory(dtype: str) -> None:
    x = torch.ones(3, 4).to(getattr(torch, dtype))
    a = arrays.array_of(x, compiler.DType.parse(dtype))
    assert a.__array_interface__["data"][0] == x.data_ptr()
    back = arrays.tensor_of(np.array(a), x.dtype) if dtype != "bfloat16" else x
    assert torch.equal(back, x)


REFUSED = {
    "unknown option": ({"dtyp": "posit8_es0"}, "unknown option of the backend dtypelab 'dtyp'"),
    "two systems": ({"dtype": "bfloat16", "scheme": "int8"}, "dtype and scheme exclude each other"),
    "unknown format": ({"dtype": "posit8es0"}, "unknown scheme or format 'posit8es0'"),
    "sums of a plan": ({"plan": "p.json", "accumulate": "exact"}, "leave out accumulate"),
    "no plan": ({"plan": "nowhere.json"}, "nowhere.json"),
    "threads": ({"threads": -1}, "threads=-1 is not a number of threads"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_options_are_one_sentence(case: str) -> None:
    options, message = REFUSED[case]
    with pytest.raises(compiler.DtypelabError, match=message):
        Options.of(options)


def test_unsupported_operators_are_named_as_torch_compiles() -> None:
    run = compiled(torch.special.bessel_j0)
    with (
        torch.no_grad(),
        pytest.raises(RuntimeError, match=r"unsupported operators: aten\.special"),
    ):
        run(torch.ones(3))


def test_the_entry_point_is_the_backend() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["dtypelab"].partition(":")
    assert getattr(import_module(module), name) is backend.dtypelab
