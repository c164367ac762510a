"""ResNet-18 from PyTorch: imported, printed, compiled, and timed beside PyTorch itself.

    python -m experiments.examples.torch_resnet18

Needs torch and torchvision. Weights are random: torchvision has trained ones. The rows `dtypelab`
and `dtypelab int8` are of torch.compile with our backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

import compiler
from experiments.measure.latency import measure_interleaved
from experiments.torch_backend import dtypelab

Tensor = Any
INT8 = {"scheme": "int8_channel"}  # calibrated on the inputs of the first call


def network() -> Any:
    """torchvision's module, as it evaluates."""
    import torch
    import torchvision

    torch.manual_seed(0)
    return torchvision.models.resnet18(weights=None).eval()


def timed(calls: Mapping[str, Callable[[], Any]], runs: int) -> dict[str, float]:
    """Print and return the median milliseconds of calls that take turns, beside the first one's."""
    stats = measure_interleaved([*calls.values()], warmup=2, runs=runs)
    found = {name: s.median for name, s in zip(calls, stats, strict=True)}
    slow = next(iter(found.values()))
    for name, milliseconds in found.items():
        print(f"{name:22} {milliseconds:8.2f} ms  {slow / milliseconds:5.2f}x")
    return found


def beside_torch(module: Any, x: Tensor, runs: int, inductor: bool) -> dict[str, float]:
    """The distance of every way to run a module from PyTorch's results, relative to the largest;
    printed with how long each takes, on one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ours = compiler.build(compiler.from_torch(module, (x,)))
    ways: dict[str, Callable[[], Any]] = {
        "torch eager": lambda: module(x),
        "compiler.build": lambda: torch.from_numpy(ours(x.numpy())),
    }
    backends: dict[str, dict[str, Any]] = {
        "dtypelab": {"backend": dtypelab},
        "dtypelab int8": {"backend": dtypelab, "options": INT8},
    }
    if inductor:  # it takes a C++ compiler, and its time
        backends["inductor"] = {"options": {"freezing": True}}
    for name, how in backends.items():
        compiled: Any = torch.compile(module, **how)
        ways[name] = partial(compiled, x)
    with torch.inference_mode():
        want = module(x)
        distances = {k: float((f() - want).abs().max() / want.abs().max()) for k, f in ways.items()}
        timed(ways, runs)
    torch.set_num_threads(threads)
    for name, distance in distances.items():
        print(f"{name:22} {distance:.1e} from PyTorch")
    return distances


def main(side: int = 224, runs: int = 20, inductor: bool = True) -> dict[str, float]:
    """Import, print, compile and time the network for one image of `side` x `side`."""
    import torch

    module = network()
    batches = ({0: torch.export.Dim("batch")},)
    mod = compiler.from_torch(module, (torch.zeros(2, 3, side, side),), dynamic_shapes=batches)
    print(*str(mod).splitlines()[:8], "  ...", sep="\n")

    run = compiler.build(mod)  # one program for every number of images
    for batch in (1, 3):
        x = torch.randn(batch, 3, side, side)
        with torch.inference_mode():
            np.testing.assert_allclose(run(x.numpy()), module(x).numpy(), rtol=1e-3, atol=1e-4)
    return beside_torch(module, torch.randn(1, 3, side, side), runs, inductor)


if __name__ == "__main__":
    main()
