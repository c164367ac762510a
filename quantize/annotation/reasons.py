"""Why nodes stay float: because they have no integer form, or are better left in float."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.ir.expr import Atom, Binding, Call, Constant, Var, tensor_type
from compiler.op.opdef import OpDef
from compiler.types.dtypes import FLOAT32
from quantize.annotation.format_nodes import EMPTY, OTHERS, format_reason
from quantize.annotation.functions import inside, unary_functions
from quantize.annotation.graph import Graph, is_float32
from quantize.annotation.normalization import layer_norm_reason
from quantize.annotation.op_facts import MOST_PRODUCTS, activations, moves, multiplies
from quantize.annotation.sites import sites
from quantize.config.node_configs import excluded
from quantize.config.overrides import Names
from quantize.config.qconfig import QConfig
from quantize.plan.call_facts import ARITHMETIC, Form, clips, contraction_of, form
from quantize.plan.fingerprint import of_sizes

OF_SIZES = "it follows from sizes alone, and is a constant where these are given"
TOO_LONG = "a table of more than 8 bits is too long"
TOO_WIDE = {
    Form.MULTIPLY: "products of more than 8 bits have no integer form",
    Form.SOFTMAX: TOO_LONG,
    Form.LAYER_NORM: "layer norms of more than 8 bits have no integer form",
}
"""Integer forms that are not for more than 8 bits, and why."""


def names_of(graph: Graph) -> dict[str, Names]:
    """Node -> the names by which patterns can mean it."""
    return {b.var.name: (b.var.name, *b.origins) for b, _ in graph.calls()}


class Reasons:
    """Which nodes of a graph stay float: the fewest that the rules allow.

    Skipping a node changes nothing for the others, but that no activation can be folded into it,
    and no function can contain it.

    Attributes:
        of: result -> why it stays float, for the calls that do; an empty text for those that are
            in number formats, or have integer weights only.
        weights: results of the calls that the configuration gives integer weights only.
        functions: result -> the value that it is a function of, for those that are one.
        inside: result of a function -> results that it contains.
    """

    def __init__(self, graph: Graph, config: QConfig):
        self.graph, self.config = graph, config
        self.of: dict[Var, str] = {}
        self.weights: set[Var] = set()
        self.skipped = excluded(config, names_of(graph))
        self.functions = unary_functions(graph, self.skipped)
        self.inside = inside(graph, self.functions)
        self._find()

    def _find(self) -> None:
        calls = self.graph.calls()
        names = names_of(self.graph)
        sizes = of_sizes(self.graph.f)
        roles = sites(self.graph) if self.config.in_formats else {}
        for b, call in calls:
            if b.var in sizes:
                self.of[b.var] = OF_SIZES
                continue
            chosen = self.config.for_node(names[b.var.name]) if self.config.rules else self.config
            if chosen.weight_only:
                self.of[b.var] = weight_only_reason(call)
                self.weights.add(b.var)
            elif chosen.in_formats:
                known = roles.get(b.var.name)
                self.of[b.var] = OTHERS if known is None else format_reason(call, chosen, known)
            elif reason := self._form(b, call):
                self.of[b.var] = reason
        changed = True
        while changed:
            changed = False
            for b, call in calls:
                if b.var not in self.of and (reason := self._context(b, call)):
                    self.of[b.var] = reason
                    changed = True
        for b, call in calls:
            if b.var in sizes:
                continue
            if b.var.name in self.skipped:
                self.of[b.var] = f"excluded by {self.skipped[b.var.name]}"
            elif b.var not in self.of and clips(call):
                p = self.graph.producer(call.args[0])
                if p is not None and self.of.get(p.var) and b.var not in self.functions:
                    self.of[b.var] = f"it reads %{p.var.name}, which stays float"

    def _form(self, b: Binding, call: Call) -> str:
        """Why a call has no integer form here; empty if it has one."""
        root = self.functions.get(b.var)
        if root is None:
            reason = form_reason(call)
            wide = not reason and any(self._bits(a) > 8 for a in activations(call))
            if wide and form(call) in TOO_WIDE:
                return TOO_WIDE[form(call)]
            left = form(call) == Form.LAYER_NORM and self.config.layer_norm == "float"
            return "layer_norm='float' leaves it in float" if left and not reason else reason
        return TOO_LONG if self._bits(root) > 8 else ""

    def _bits(self, a: Atom) -> int:
        """Bits of the integers of an operand."""
        while isinstance(a, Var):
            p = self.graph.producer(a)
            call = p.value if p is not None else None
            if p is None or not isinstance(call, Call) or not isinstance(call.op, OpDef):
                return self.config.for_node((a.name,)).activation_bits
            if not moves(call.op):
                return self.config.for_node((p.var.name, *p.origins)).activation_bits
            a = call.args[0]
        return 0

    def is_integer(self, b: Binding) -> bool:
        """Whether a binding is a call that does not stay float."""
        return isinstance(b.value, Call) and is_float32(b.var) and b.var not in self.of

    def integer_readers(self, v: Var) -> list[Binding]:
        """The calls that read `v` and do not stay float."""
        return [r for r in self.graph.readers(v) if r is not None and self.is_integer(r)]

    def only_inside(self, v: Var) -> bool:
        """Whether functions that contain `v` are all that reads its integers."""
        return all(v in self.inside.get(r.var, ()) for r in self.integer_readers(v))

    # ---- in their place --------------------------------------------------------------------------
    def _context(self, b: Binding, call: Call) -> str:
        """Why a call that has an integer form is better left in float here; empty if it is not."""
        op = call.op
        assert isinstance(op, OpDef)
        if multiplies(call):
            return ""
        inner = self.integer_readers(b.var)
        if not inner:
            return "no integer operator reads its result"
        root = self.functions.get(b.var)
        data: Sequence[Atom] = activations(call) if root is None else [root]
        for a in data:
            p = self.graph.producer(a)
            given = p is not None and self.is_integer(p)
            if (
                not given
                and form(call) != Form.LAYER_NORM
                and (
                    root is not None or not moves(op) or len(inner) < len(self.graph.readers(b.var))
                )
            ):
                return f"it reads {a!r}, which is not an integer"
        if reason := self._elementwise(b, call, data):
            return reason
        for v in self.inside.get(b.var, ()):
            if v in self.of:
                return f"it contains %{v.name}, which stays float"
        return ""

    def _elementwise(self, b: Binding, call: Call, data: Sequence[Atom]) -> str:
        """Why a function, product, difference, or sum with a constant is better left in float."""
        if form(call) == Form.SOFTMAX and self.config.softmax == "float":
            return "softmax='float' leaves it in float"
        function, constant = b.var in self.functions, _has_constant(call)
        if not function and form(call) not in ARITHMETIC:
            return ""
        if not function and form(call) == Form.ADD and not constant:
            return ""
        what = "functions" if function else "arithmetic"
        wanted = getattr(self.config, what)
        if wanted == "float":
            return f"{what}='float' leaves it in float"
        if wanted == "integer":
            return ""
        if form(call) == Form.SUBTRACT and any(_is_mean(self.graph, a) for a in data):
            return "it takes a mean off its data: normalizations are better left in float"
        inner = self.integer_readers(b.var)
        p = self._accumulator(data[0]) if function or constant else None
        normalized = any(isinstance(r.value, Call) and form(r.value) == Form.SOFTMAX for r in inner)
        if p is not None and not normalized:
            return f"it is computed from the accumulator of %{p.name}, which saves a rounding"
        if constant and not function and all(self._sums(r) for r in inner):
            return "only sums and products read it, which are one kernel in float"
        return ""

    def _sums(self, r: Binding) -> bool:
        return isinstance(r.value, Call) and form(r.value) in ARITHMETIC

    def _accumulator(self, a: Atom) -> Var | None:
        """The sums of products that `a` is, perhaps moved or clipped, if nothing else wants their
        integers."""
        while isinstance(a, Var):
            p = self.graph.producer(a)
            if p is None or not isinstance(p.value, Call) or not isinstance(p.value.op, OpDef):
                return None
            if not all(self._takes_reals(r) for r in self.integer_readers(a)):
                return None
            if multiplies(p.value):
                return p.var if self.is_integer(p) else None
            if not moves(p.value.op) and not clips(p.value):
                return None
            a = p.value.args[0]
        return None

    def _takes_reals(self, r: Binding) -> bool:
        """Whether a reader would be as good in float, and only passes integers on if it must."""
        call = r.value
        assert isinstance(call, Call)
        if r.var in self.functions or (form(call) in ARITHMETIC and _has_constant(call)):
            return True
        passes = bool(clips(call)) or (isinstance(call.op, OpDef) and moves(call.op))
        return passes and all(self._takes_reals(x) for x in self.integer_readers(r.var))


def _has_constant(call: Call) -> bool:
    return any(isinstance(a, Constant) for a in call.args)


def _is_mean(graph: Graph, a: Atom) -> bool:
    p = graph.producer(a)
    if p is None or not isinstance(p.value, Call) or form(p.value) != Form.AVERAGE:
        return False
    return hasattr(p.value.attrs, "axis")  # over the pixels of an image, it is no normalization


# ---- alone ---------------------------------------------------------------------------------------
def form_reason(call: Call) -> str:
    """Why a call has no integer form, as far as it alone tells; empty if it has one."""
    if form(call) == Form.NONE:
        return "it has no integer form"
    data = activations(call)
    if not data or not all(is_float32(a) for a in data if isinstance(a, Var)):
        return "its operands are not float32"
    if any(isinstance(a, Constant) for a in data):
        return "an operand is constant"
    if form(call) == Form.WEIGHTED:
        return _weight_reason(call)
    if form(call) in ARITHMETIC:
        return _constant_reason(call)
    if form(call) == Form.LAYER_NORM:
        return layer_norm_reason(call)
    return _product_reason(call) if form(call) == Form.MATMUL else ""


def _constant_reason(call: Call) -> str:
    constants = [a for a in call.args if isinstance(a, Constant)]
    if any(c.dtype != FLOAT32 for c in constants):
        return "its operands are not float32"
    if not all(np.isfinite(c.data).all() for c in constants):
        return "its constant holds NaN or infinity"
    return ""


def _product_reason(call: Call) -> str:
    inner = tensor_type(call.args[0]).shape[-1]
    if isinstance(inner, int) and inner > MOST_PRODUCTS:
        return f"sums of {inner} products could overflow an int32 accumulator"
    return ""


def _weight_reason(call: Call) -> str:
    weight, *bias = call.args[1:]
    biases = [c.data for c in bias if isinstance(c, Constant)]
    if not isinstance(weight, Constant) or len(biases) < len(bias):
        return "its weights are not constant"
    if not weight.data.size:
        return EMPTY
    rows = np.abs(weight.data.reshape(weight.data.shape[0], -1))
    most = rows.max(axis=1).astype(np.float64)  # NaN if one of them is
    if not all(np.isfinite(a).all() for a in (most, *biases)):
        return "its weights hold NaN or infinity"
    largest = np.maximum(most, np.finfo(np.float32).tiny)
    sums = rows.sum(axis=1, dtype=np.float64)
    # Half of the accumulator's range is for the sum of products, the other half for the bias.
    if (255 * (127 * sums / largest + rows.shape[1] / 2)).max() > 2**30:
        return f"sums of {rows.shape[1]} products could overflow an int32 accumulator"
    return ""


def weight_only_reason(call: Call) -> str:
    """Why the weights of a call stay float; empty if they can be integers."""
    axes = contraction_of(call)
    if axes is None or not axes.by_rows:
        return "only the weights of dense layers and convolutions are integers"
    weight = call.args[1]
    if not isinstance(weight, Constant):
        return "its weights are not constant"
    if not weight.data.size:
        return EMPTY
    if weight.dtype != FLOAT32 or not np.isfinite(weight.data).all():
        return "its weights are not finite float32 numbers"
    return ""


__all__ = ["Reasons", "form_reason", "names_of", "weight_only_reason"]
