"""AlterOpLayout: convolutions on NCHW[x]c data, and everything between them in the same layout.

Rules, one an operator, say in which layouts it wants to work (see `layout_rules`). Values that
are needed in both layouts are transformed once, and transforms between operators that agree never
arise. Channels that fill up a last block hold values that nobody reads.

Results are in the layouts of their types. A function with the attribute ANY_LAYOUT, a truth value
for each result, returns those marked so in blocks if it has them, unless blocks are filled up: they
have the right values in any order.

Grouped convolutions take and give blocks in which every group starts a block of its own; operators
between them keep that, and a channel shuffle (reshape, transpose, reshape) moves whole blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from compiler.errors import InputError, TypeInferenceError
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Value,
    Var,
    atom_type,
    names_in,
    operands,
    tensor_type,
)
from compiler.ir.inference import infer_value
from compiler.ir.substitution import with_operands
from compiler.op.facts import Moves
from compiler.op.layout import LAYOUT_TRANSFORM
from compiler.op.opdef import Fusion, OpDef
from compiler.op.reduce import MEAN
from compiler.op.shapes import RESHAPE
from compiler.passes.manager import FunctionPass, PassContext
from compiler.target.registry import Target
from compiler.transform.channel_blocks import (
    Blocks,
    blocks_of,
    broadcast,
    channels_of,
    filled,
    merged,
    placed,
    shuffles,
)
from compiler.transform.layout_rules import (
    OpLayout,
    default_rule,
    is_mean,
    layout_rule,
    usual_block,
)
from compiler.types.tensor_types import TensorType

ANY_LAYOUT = "any_layout"
"""Attribute of functions: which of its results may be in blocks."""


class AlterOpLayout(FunctionPass):
    """Rewrites convolutions to blocked layouts, by default as many channels a block as a vector of
    the target has 32-bit lanes, or as its products of matrices take (see `usual_block`).

    The PassContext's option "AlterOpLayout.block" gives another number, e.g. 4 for NCHW4c.

    Raises:
        InputError: the option is no number of channels.
    """

    name = "AlterOpLayout"
    opt_level = 2
    required = ("InferType",)
    options = ("block",)

    def __init__(self, target: str | Target = "llvm"):
        self.target = Target.parse(target)

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function in blocked layouts (itself, if it has no convolution to change)."""
        block = ctx.config.get("AlterOpLayout.block", 0)
        if not isinstance(block, int) or block < 0 or block == 1:
            raise InputError(f"AlterOpLayout.block must be a number of channels, not {block!r}")
        calls = [b.value for b in f.bindings if isinstance(b.value, Call)]
        return _Layouts(f, block or usual_block(calls, self.target), self.target).run()


class _Layouts:
    def __init__(self, f: Function, lanes: int, target: Target):
        self.f, self.lanes, self.target = f, lanes, target
        self.bindings: list[Binding] = []
        self.names = names_in(f)
        self.plain: set[Var] = set(f.params)
        # Plain variable -> its value in blocks, by block size.
        self.blocks: dict[Var, dict[Blocks, Var]] = {}
        self.constants: dict[tuple[Constant, Blocks], Var] = {}
        self.shuffles = shuffles(f)
        self.done: set[Var] = set()

    def run(self) -> Function:
        for b in self.f.bindings:
            if b.var not in self.done and not self._blocked(b):
                self._keep(b)
        if not self.blocks:
            return self.f
        free = self.f.attrs.get(ANY_LAYOUT) or [False] * len(self.f.results)
        results = [self._as_result(r, k) for r, k in zip(self.f.results, free, strict=True)]
        return self.f.with_body(self.bindings, results)

    def _as_result(self, a: Atom, free: bool) -> Atom:
        block = self._block_of(a)
        if isinstance(a, Var) and block is not None and free:
            channels = channels_of(a)
            if block.held(channels) == channels:
                return self.blocks[a][block]
        return self._as_plain(a)

    # ---- emitting --------------------------------------------------------------------------------
    def _fresh(self, stem: str) -> str:
        name, k = stem, 1
        while name in self.names:
            name, k = f"{stem}_{k}", k + 1
        self.names.add(name)
        return name

    def _emit(self, stem: str, value: Value, origins: tuple[str, ...] = ()) -> Var:
        var = Var(self._fresh(stem), infer_value(value))
        self.bindings.append(Binding(var, value, origins))
        return var

    def _call(self, op: OpDef, *args: Atom, **attrs: Any) -> Call:
        return Call(op, args, op.make_attrs(**attrs))

    def _keep(self, b: Binding) -> None:
        value = with_operands(b.value, [self._as_plain(a) for a in operands(b.value)])
        self.bindings.append(Binding(b.var, value, b.origins))
        self.plain.add(b.var)

    def _as_plain(self, a: Atom) -> Atom:
        if isinstance(a, Constant) or a in self.plain:
            return a
        ((block, var),) = list(self.blocks[a].items())[:1]
        value = self._call(
            LAYOUT_TRANSFORM,
            var,
            src_layout=f"NCHW{block.size}c",
            channels=channels_of(a),
            src_groups=block.groups,
        )
        self.bindings.append(Binding(a, value))
        self.plain.add(a)
        return a

    def _as_blocked(self, a: Var, block: Blocks) -> Var:
        held = self.blocks.setdefault(a, {})
        if block not in held:
            alike = [x for x in held if x.size == block.size]
            if alike:
                value = self._between(held[alike[0]], channels_of(a), alike[0], block)
            else:
                value = self._call(
                    LAYOUT_TRANSFORM,
                    self._as_plain(a),
                    dst_layout=f"NCHW{block.size}c",
                    dst_groups=block.groups,
                )
            held[block] = self._emit(f"{a.name}_{block.size}c", value)
        return held[block]

    def _constant(self, a: Constant, out: TensorType, block: Blocks) -> Var | None:
        """A constant that varies along more than the channels; FoldConstant computes its blocks."""
        if a.data.ndim != 4 or a.data.shape[1] != out.shape[1]:
            return None
        if (a, block) not in self.constants:
            layout = f"NCHW{block.size}c"
            value = self._call(LAYOUT_TRANSFORM, a, dst_layout=layout, dst_groups=block.groups)
            self.constants[a, block] = self._emit(f"constant_{block.size}c", value)
        return self.constants[a, block]

    def _between(self, x: Var, channels: int, src: Blocks, dst: Blocks, shuffle: int = 1) -> Call:
        layout = f"NCHW{src.size}c"
        return self._call(
            LAYOUT_TRANSFORM, x, src_layout=layout, dst_layout=layout, channels=channels,
            src_groups=src.groups, dst_groups=dst.groups, shuffle=shuffle,
        )  # fmt: skip

    def _define(self, b: Binding, value: Value, block: Blocks) -> bool:
        """Bind the blocked form of `b`'s value."""
        self.blocks[b.var] = {block: self._emit(f"{b.var.name}_{block.size}c", value, b.origins)}
        return True

    def _block_of(self, a: Atom) -> Blocks | None:
        """Blocks in which `a` is at hand, None if it is plain."""
        if isinstance(a, Var) and a not in self.plain:
            return next(iter(self.blocks[a]))
        return None

    # ---- operators -------------------------------------------------------------------------------
    def _blocked(self, b: Binding) -> bool:
        v = b.value
        if not isinstance(v, Call) or not isinstance(v.op, OpDef):
            return False
        op = v.op
        rule = layout_rule(op.name, self.target)
        types = [atom_type(a) for a in v.args]
        wanted = rule(v.attrs, types, self.lanes, self.target) if rule is not None else None
        if op.contraction is not None and hasattr(v.attrs, "data_layout"):
            if (v.attrs.data_layout, v.attrs.out_layout) != ("NCHW", "NCHW"):
                return False  # somebody chose already
            return wanted is not None and self._convolution(b, v, wanted)
        if rule is not None and wanted is None:
            return False
        blocks = {x for a in v.args if (x := self._block_of(a)) is not None}
        if wanted is not None:
            if any(not isinstance(t, TensorType) or t.rank != 4 for t in types[:1]):
                return False
            block = Blocks(wanted.out)
        elif len({x.size for x in blocks}) != 1:
            return False
        else:
            block = min(blocks, key=lambda x: x.groups)
        if b.var in self.shuffles:
            return self._shuffle(b, self.shuffles[b.var], block)
        if op.blocked:
            args = tuple(self._read(a, block) for a in v.args)
            return self._define(b, replace(v, args=args), block)
        if is_mean(op):
            return self._mean(b, v, block)
        if op.moves is Moves.JOIN:
            return self._concatenate(b, v, block)
        if op.fusion is Fusion.ELEMENTWISE:
            return self._elementwise(b, v, block)
        return False

    def _shuffle(self, b: Binding, chain: tuple[Binding, Binding, int], block: Blocks) -> bool:
        """The channel shuffle that starts with reshape `b`."""
        between, last, groups = chain
        assert isinstance(b.value, Call)
        (x,) = b.value.args
        channels = channels_of(x)
        value = self._between(self._read(x, block), channels, block, block, groups)
        self.done |= {between.var, last.var}
        return self._define(last, value, block)

    def _read(self, a: Atom, block: Blocks) -> Var:
        assert isinstance(a, Var)
        return self._as_blocked(a, block)

    def _convolution(self, b: Binding, v: Call, wanted: OpLayout) -> bool:
        data, *rest = v.args
        if not isinstance(data, Var) or v.attrs.data_layout != "NCHW":
            return False
        constants = [x for x in rest if isinstance(x, Constant)]
        if len(constants) < len(rest):
            return self._unpacked(b, v, wanted)
        weight, *bias = constants
        outputs, inputs = weight.data.shape[:2]
        attrs = v.attrs
        i, depthwise = inputs, inputs == 1 and attrs.groups == outputs > 1
        source, into = Blocks(wanted.data), Blocks(wanted.out)
        if depthwise:
            held = self._block_of(data)
            if held is not None and held.size == wanted.data == wanted.out:
                source = into = held  # any order of channels does
            attrs = replace(attrs, groups=into.held(outputs))
        else:
            if attrs.groups > 1:
                channels = channels_of(data)
                if tensor_type(data).dtype.is_integer:
                    weight, groups = merged(weight, attrs.groups, wanted.out)
                    attrs, i = replace(attrs, groups=groups), weight.data.shape[1]
                source = blocks_of(channels, wanted.data, attrs.groups)
                into = blocks_of(outputs, wanted.out, attrs.groups)
            if tensor_type(data).dtype.is_integer and wanted.data > 1:
                i = -(-i // wanted.steps) * wanted.steps  # for dot products
        args = [placed(c, outputs, into) for c in (weight, *bias)]
        args[0] = filled(args[0], {1: i})
        return self._convolved(b, replace(v, attrs=attrs), source, into, args)

    def _unpacked(self, b: Binding, v: Call, wanted: OpLayout) -> bool:
        """A convolution whose weights are known at run time only: they are not laid out anew, so
        that its blocks must be full. Kernels of blocks are quicker nevertheless, of floats 1.6 to 8
        times where channels fill them (the layers of ResNet-18, batch 8); of integers, a rule that
        somebody registered must want this."""
        assert isinstance(v.op, OpDef)
        own = layout_rule(v.op.name, self.target) is not default_rule
        dtype = tensor_type(v.args[0]).dtype
        if not own and not dtype.is_custom and not dtype.is_float:
            return False
        outputs, inputs = tensor_type(v.args[1]).shape[:2]
        steps = wanted.steps if dtype.is_integer else 1
        if not isinstance(outputs, int) or not isinstance(inputs, int) or v.attrs.groups != 1:
            return False
        if outputs % wanted.out or inputs % max(wanted.data, steps):
            return False
        return self._convolved(b, v, Blocks(wanted.data), Blocks(wanted.out), v.args[1:])

    def _convolved(
        self, b: Binding, v: Call, source: Blocks, into: Blocks, rest: Sequence[Atom]
    ) -> bool:
        data, *_ = v.args
        assert isinstance(data, Var)
        x = self._as_plain(data) if source.size == 1 else self._as_blocked(data, source)
        attrs = replace(
            v.attrs,
            data_layout="NCHW" if source.size == 1 else f"NCHW{source.size}c",
            out_layout=f"NCHW{into.size}c",
        )
        return self._define(b, Call(v.op, (x, *map(self._as_plain, rest)), attrs), into)

    def _mean(self, b: Binding, v: Call, block: Blocks) -> bool:
        if not hasattr(v.attrs, "axis"):  # over all positions
            value: Call = self._call(
                MEAN,
                self._read(v.args[0], block),
                axis=(2, 3),
                keepdims=True,
                accumulate=v.attrs.accumulate,
            )
            return self._define(b, value, block)
        axis = v.attrs.axis if isinstance(v.attrs.axis, tuple) else (v.attrs.axis,)
        if {k % 4 for k in axis} != {2, 3}:
            return False
        attrs = replace(v.attrs, axis=(2, 3), keepdims=True)
        kept = replace(v, args=(self._read(v.args[0], block),), attrs=attrs)
        if v.attrs.keepdims:
            return self._define(b, kept, block)
        # [n, c/x, 1, 1, x] -> [n, c, 1, 1] -> [n, c]
        channels = int(str(tensor_type(b.var).shape[1]))
        apart = self._emit(f"{b.var.name}_{block.size}c", kept, b.origins)
        whole = self._emit(
            f"{b.var.name}_11",
            self._call(
                LAYOUT_TRANSFORM,
                apart,
                src_layout=f"NCHW{block.size}c",
                channels=channels,
                src_groups=block.groups,
            ),
        )
        value = self._call(RESHAPE, whole, newshape=(0, channels))
        self.bindings.append(Binding(b.var, value, b.origins))
        self.plain.add(b.var)
        return True

    def _concatenate(self, b: Binding, v: Call, block: Blocks) -> bool:
        block = Blocks(block.size)
        if v.attrs.axis % 4 != 1 or len(tensor_type(b.var).shape) != 4:
            return False
        for a in v.args:
            channels = tensor_type(a).shape[1]
            if not isinstance(a, Var) or not isinstance(channels, int) or channels % block.size:
                return False
        args = tuple(self._read(a, block) for a in v.args)
        return self._define(b, replace(v, args=args, attrs=replace(v.attrs, axis=1)), block)

    def _elementwise(self, b: Binding, v: Call, block: Blocks) -> bool:
        out = atom_type(b.var)
        if not isinstance(out, TensorType) or out.rank != 4:
            return False
        assert isinstance(v.op, OpDef)
        args: list[Atom] = []
        for k, a in enumerate(v.args):
            if k in v.op.tables:
                args.append(self._as_plain(a))
            elif isinstance(a, Constant):
                c: Atom | None = broadcast(a, v, out, block) or self._constant(a, out, block)
                if c is None:
                    return False
                args.append(c)
            elif tensor_type(a).rank == 4 and tensor_type(a).shape[1] == out.shape[1]:
                args.append(self._as_blocked(a, block))
            else:
                return False
        value = Call(v.op, tuple(args), v.attrs)
        try:
            got = infer_value(value)
        except TypeInferenceError:
            return False
        want = (*out.shape[2:4], block.size)
        if not isinstance(got, TensorType) or got.rank != 5 or got.shape[2:] != want:
            return False
        return self._define(b, value, block)
