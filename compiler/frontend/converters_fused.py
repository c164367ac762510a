"""Converters of onnxruntime's own operators (com.microsoft) that stand for several of ONNX's:
activations with their bias, norms with the sum before them, embeddings with their norm."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.frontend.converters_microsoft import microsoft, without_domain
from compiler.frontend.converters_nn import rms_normalized
from compiler.frontend.indices import check_counted, check_positions
from compiler.frontend.node import Node
from compiler.frontend.run_time import positions
from compiler.frontend.values import Imported, scalar
from compiler.frontend.widening import in_dtype_of, widened
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.symbolic import Index, dim
from compiler.types.dtypes import INT32, INT64


# ---- activations ---------------------------------------------------------------------------------
@microsoft("Gelu", 1, 1)
def gelu(n: Node) -> Imported:
    """x * (1 + erf(x / sqrt(2))) / 2."""
    return n.call("nn.gelu", n.atom(0), approximate="none")


@microsoft("BiasGelu", 2, 2)
def bias_gelu(n: Node) -> Imported:
    """The same of a sum."""
    return n.call("nn.gelu", n.step("add", n.atom(0), n.atom(1)), approximate="none")


@microsoft("FastGelu", 1, 2)
def fast_gelu(n: Node) -> Imported:
    """Approximated by tanh, of a sum if there is a second operand."""
    x = n.step("add", n.atom(0), n.atom(1)) if n.has(1) else n.atom(0)
    return n.call("nn.gelu", x, approximate="tanh")


@microsoft("QuickGelu", 1, 1)
def quick_gelu(n: Node) -> Imported:
    """x * sigmoid(alpha * x)."""
    x, alpha = n.atom(0), float(n.attr("alpha", 1.702))
    scaled = x if alpha == 1 else n.step("multiply", x, scalar(alpha, n.type(0)))
    return n.call("multiply", x, n.step("sigmoid", scaled))


# ---- norms ---------------------------------------------------------------------------------------
@without_domain("SimplifiedLayerNormalization", 2, 2, outputs=2)
def simplified_layer_norm(n: Node) -> Imported:
    """A root mean square norm from `axis` on; onnxruntime has it in ONNX's own domain."""
    _no_statistics(n, 1)
    n.expect("stash_type", 1, 1)
    return rms_normalized(n, widened(n, n.atom(0)), n.axis(-1, n.type(0).rank), n.atom(1))


@microsoft("SkipLayerNormalization", 3, 5, outputs=4)
def skip_layer_norm(n: Node) -> Sequence[Imported]:
    """The layer norm of a sum of two, and a bias; output 3 is the sum."""
    _no_statistics(n, 1, 2)
    x = _skipped(n, 4)
    gain = widened(n, n.atom(2))
    offset = [widened(n, n.atom(3))] if n.has(3) else []
    epsilon = float(n.attr("epsilon", 1e-12))
    return [in_dtype_of(n, 0, "nn.layer_norm", widened(n, x), gain, *offset, epsilon=epsilon),
            x, x, x]  # fmt: skip


@microsoft("SkipSimplifiedLayerNormalization", 3, 4, outputs=4)
def skip_simplified_layer_norm(n: Node) -> Sequence[Imported]:
    """The root mean square norm of a sum of two, and a bias; output 3 is the sum."""
    _no_statistics(n, 1, 2)
    x = _skipped(n, 3)
    return [rms_normalized(n, widened(n, x), n.type(0).rank - 1, n.atom(2)), x, x, x]


def _no_statistics(n: Node, *outputs: int) -> None:
    for i in outputs:
        if n.wants(i):
            raise n.unsupported(f"its output {i} (a statistic that training needs) in use")


def _skipped(n: Node, bias: int) -> Atom:
    """The sum of inputs 0 and 1, and of input `bias` if it is given; it is output 3."""
    args, last = (n.atom(0), n.atom(1)), n.has(bias)

    def out(*args: Atom) -> Atom:
        return n.result(3, "add", *args) if n.wants(3) else n.step("add", *args)

    return out(n.step("add", *args), n.atom(bias)) if last else out(*args)


@microsoft("EmbedLayerNormalization", 7, 9, outputs=3)
def embed_layer_norm(n: Node) -> Sequence[Imported]:
    """The layer norm of the sum of embeddings of words, positions and segments. Output 1: how many
    words each row has by the mask (0 without one); output 2: the sum."""
    check_positions(n, 0, [n.type(2).shape[0]])
    words = n.step("take", n.atom(2), n.atom(0), axis=0)
    table, length = n.type(3), n.type(0).shape[1]
    if n.has(8):
        check_positions(n, 8, [table.shape[0]])
        places = n.step("take", n.atom(3), n.atom(8), axis=0)
    else:
        check_counted(n, dim(Index.of(length) - 1), table.shape[0])
        places = n.step("take", n.atom(3), positions(n, length), axis=0)
    total = n.step("add", words, places)
    if n.has(4):
        if n.has(1):
            check_positions(n, 1, [n.type(4).shape[0]])
        segments = n.atom(1) if n.has(1) else Constant.of(0, INT64)  # all are of the first
        total = n.step("add", total, n.step("take", n.atom(4), segments, axis=0))
    gain, offset = (widened(n, n.atom(i)) for i in (5, 6))
    epsilon = float(n.attr("epsilon", 1e-12))
    y = n.step("nn.layer_norm", widened(n, total), gain, offset, epsilon=epsilon)
    dtype = tensor_type(total).dtype
    y = y if tensor_type(y).dtype == dtype else n.step("cast", y, dtype=str(dtype))
    out: list[Imported] = [y, y, total]
    if n.wants(1):
        out[1] = _words(n)
    return out


def _words(n: Node) -> Atom:
    """int32 [batch]: how many elements of the mask are 1."""
    if n.has(7):
        mask = n.step("cast", n.atom(7), dtype="int32")
        return n.result(1, "sum", mask, axis=(1,))
    zero = Constant.of(0, INT32)
    return n.result(1, "broadcast_to", zero, shape=(n.type(0).shape[0],))
