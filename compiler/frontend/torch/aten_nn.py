"""Converters of products and convolutions."""

from __future__ import annotations

from compiler.frontend.converters_nn import matrix_product
from compiler.frontend.node import Results
from compiler.frontend.torch.node import TorchNode, aten
from compiler.frontend.values import scalar, transposed
from compiler.ir.expr import Atom, Constant, tensor_type


@aten("linear")
def linear(n: TorchNode) -> Results:
    """x W' + b; weights that the program computes are transposed by it."""
    bias = [n.x("bias")] if n.arg("bias") is not None else []
    return n.call("nn.dense", n.x("input"), n.x("weight"), *bias)


@aten("addmm")
def addmm(n: TorchNode) -> Results:
    """beta * self + alpha * mat1 mat2."""
    a, b, c = n.x("mat1"), n.x("mat2"), n.x("self")
    alpha, beta = n.number("alpha"), n.number("beta")
    plain = alpha == beta == 1 and tensor_type(c).rank == 1
    if plain and tensor_type(c).shape == (tensor_type(b).shape[1],):
        turned = transposed(b) if isinstance(b, Constant) else n.step("transpose", b, axes=(1, 0))
        return n.call("nn.dense", a, turned, c)
    y = matrix_product(n, a, b, n.step)
    return n.call("add", _scaled(n, c, beta), _scaled(n, y, alpha))


@aten("baddbmm")
def baddbmm(n: TorchNode) -> Results:
    """beta * self + alpha * batch1 batch2."""
    y = n.step("nn.matmul", n.x("batch1"), n.x("batch2"))
    if n.number("beta") == 0:
        return _scaled(n, y, n.number("alpha"))
    return n.call("add", _scaled(n, n.x(), n.number("beta")), _scaled(n, y, n.number("alpha")))


def _scaled(n: TorchNode, x: Atom, factor: float) -> Atom:
    return x if factor == 1 else n.step("multiply", x, scalar(factor, tensor_type(x)))


@aten("mm", "bmm", "matmul", "mv", "dot")
def matmul(n: TorchNode) -> Results:
    """numpy's matmul."""
    a, b = (n.x(name) for name in list(n.args)[:2])
    return matrix_product(n, a, b, n.call)


@aten("einsum")
def einsum(n: TorchNode) -> Results:
    """A sum of products."""
    return n.spelled(
        "Einsum", *(n.imported(t) for t in n.arg("tensors")), equation=n.arg("equation")
    )


@aten("convolution", "conv1d", "conv2d", "conv3d")
def convolution(n: TorchNode) -> Results:
    """Of one to three axes; transposed or not."""
    name = "input"
    w = tensor_type(n.x("weight"))
    count = w.rank - 2
    strides = n.numbers("stride", count)
    dilation = n.numbers("dilation", count)
    attrs = {"strides": strides, "dilations": dilation, "group": n.number("groups")}
    operands = [n.x(name), n.x("weight")]
    operands += [n.x("bias")] if n.arg("bias") is not None else []
    if isinstance(n.arg("padding"), str):
        auto = {"valid": "VALID", "same": "SAME_UPPER"}[n.arg("padding")]
        return n.spelled("Conv", *operands, **attrs, auto_pad=auto)
    pads = n.numbers("padding", count)
    attrs["pads"] = (*pads, *pads)
    if n.args.get("transposed"):
        more = n.numbers("output_padding", count)
        return n.spelled("ConvTranspose", *operands, **attrs, output_padding=more)
    return n.spelled("Conv", *operands, **attrs)


@aten("embedding")
def embedding(n: TorchNode) -> Results:
    """Rows of a table."""
    return n.spelled("Gather", n.x("weight"), n.x("indices"), axis=0)


@aten("pixel_shuffle")
def pixel_shuffle(n: TorchNode) -> Results:
    """Channels into the plane: [r * r * c] to [r, r], the channel before the place."""
    size = n.number("upscale_factor")
    return n.spelled("DepthToSpace", n.x(), blocksize=size, mode="CRD")
