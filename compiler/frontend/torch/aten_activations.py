"""Converters of activations."""

from __future__ import annotations

from compiler.frontend.node import Results
from compiler.frontend.torch.node import TorchNode, aten
from compiler.frontend.values import constant_of, scalar
from compiler.ir.expr import tensor_type


@aten("hardswish")
def hard_swish(n: TorchNode) -> Results:
    """x * clip(x / 6 + 1/2, 0, 1)."""
    return n.call("nn.hard_swish", n.x())


@aten("hardsigmoid")
def hard_sigmoid(n: TorchNode) -> Results:
    """clip(x / 6 + 1/2, 0, 1)."""
    return n.call("nn.hard_sigmoid", n.x(), alpha=1 / 6, beta=0.5)


@aten("relu6")
def relu6(n: TorchNode) -> Results:
    """clip(x, 0, 6)."""
    return n.call("clip", n.x(), a_min=0.0, a_max=6.0)


@aten("silu")
def silu(n: TorchNode) -> Results:
    """x * sigmoid(x)."""
    x = n.x()
    return n.call("multiply", x, n.step("sigmoid", x))


@aten("gelu")
def gelu(n: TorchNode) -> Results:
    """Exact or tanh approximation."""
    return n.call("nn.gelu", n.x(), approximate=n.arg("approximate") or "none")


@aten("leaky_relu")
def leaky_relu(n: TorchNode) -> Results:
    """x if x >= 0 else slope * x."""
    return n.call("nn.leaky_relu", n.x(), alpha=float(n.number("negative_slope")))


@aten("elu")
def elu(n: TorchNode) -> Results:
    """scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1)); selu and celu are of it."""
    x, t = n.x(), tensor_type(n.x())
    alpha, scale, inner = (float(n.number(k)) for k in ("alpha", "scale", "input_scale"))
    low = n.step("minimum", x, scalar(0, t))  # (exp overflows where it is not wanted)
    low = n.step("multiply", low, scalar(inner, t)) if inner != 1 else low
    low = n.step("subtract", n.step("exp", low), scalar(1, t))
    low = n.step("multiply", low, scalar(alpha * scale, t))
    high = n.step("multiply", x, scalar(scale, t)) if scale != 1 else x
    return n.call("where", n.step("greater", x, scalar(0, t)), high, low)


@aten("softplus")
def softplus(n: TorchNode) -> Results:
    """log(1 + exp(beta * x)) / beta; x itself beyond the threshold."""
    x, t = n.x(), tensor_type(n.x())
    beta, threshold = float(n.number("beta")), float(n.number("threshold"))
    scaled = n.step("multiply", x, scalar(beta, t)) if beta != 1 else x
    y = n.made(n.spelled_step("Softplus", scaled))
    y = n.step("divide", y, scalar(beta, t)) if beta != 1 else y
    return n.call("where", n.step("greater", scaled, scalar(threshold, t)), x, y)


@aten("mish")
def mish(n: TorchNode) -> Results:
    """x * tanh(softplus(x))."""
    return n.spelled("Mish", n.x())


@aten("_prelu_kernel", "prelu")
def prelu(n: TorchNode) -> Results:
    """x if x >= 0 else weight * x; weights are of channels."""
    x, w = n.x(), n.x("weight")
    t = tensor_type(x)
    if n.op == "aten.prelu" and t.rank > 1:
        w = n.step("reshape", w, newshape=(-1, *(1 for _ in t.shape[2:])))
    low = n.step("multiply", x, w)
    return n.call("where", n.step("greater_equal", x, scalar(0, t)), x, low)


@aten("log_sigmoid", "log_sigmoid_forward")
def log_sigmoid(n: TorchNode) -> Results:
    """-softplus(-x)."""
    y = n.made(n.spelled_step("Softplus", n.step("negative", n.x())))
    return [n.call("negative", y)]


@aten("threshold")
def threshold(n: TorchNode) -> Results:
    """x above a threshold, else a value."""
    x, t = n.x(), tensor_type(n.x())
    above = n.step("greater", x, scalar(n.number("threshold"), t))
    return n.call("where", above, x, constant_of(n.number("value"), t.dtype))


@aten("glu")
def glu(n: TorchNode) -> Results:
    """The first half times the sigmoid of the second."""
    x, t = n.x(), tensor_type(n.x())
    axis = n.front(n.number("dim"), t.rank)
    size = t.shape[axis]
    if not isinstance(size, int) or size % 2:
        raise n.unsupported(f"an axis of {size} elements")
    half = size // 2
    a, b = (
        n.step("strided_slice", x, begin=(k * half,), end=((k + 1) * half,), axes=(axis,))
        for k in (0, 1)
    )
    return n.call("multiply", a, n.step("sigmoid", b))
