"""The examples of PyTorch's networks, in small: what they compute is what PyTorch computes. Skipped
where torch, torchvision or transformers are not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from experiments.examples import torch_bert, torch_resnet18

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
INT8 = "dtypelab int8"


def test_resnet18(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchvision")
    torch._dynamo.reset()
    far = torch_resnet18.main(side=64, runs=2, inductor=False)
    assert set(far) == {"torch eager", "compiler.build", "dtypelab", INT8}
    assert max(v for k, v in far.items() if k != INT8) < 1e-4
    assert far[INT8] < 0.1
    assert "%layer1_0_conv1 = nn.conv2d(" in capsys.readouterr().out


def test_bert(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    torch._dynamo.reset()
    far = torch_bert.main(layers=1, width=128, tokens=16, runs=2, inductor=False)
    assert max(v for k, v in far.items() if k != INT8) < 1e-4
    assert far[INT8] < 0.1
    assert "%output_LayerNorm = nn.layer_norm(" in capsys.readouterr().out


def test_the_backend_is_found_by_its_name() -> None:
    """In a process of its own, which imports torch alone."""
    if not entry_points(group="torch_dynamo_backends", name="dtypelab"):
        pytest.skip("the package was installed before it had this entry point: install it again")
    code = """
import torch
assert "dtypelab" in torch._dynamo.list_backends()
f = torch.compile(lambda x: x * 2 + 1, backend="dtypelab", options={"dtype": "bfloat16"})
x = torch.arange(300.0)
with torch.no_grad():
    want = (x.to(torch.bfloat16) * 2 + 1).float()
    assert torch.equal(f(x), want)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
