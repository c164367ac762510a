"""OpDef: everything that is true of one operator, in one place; and the registry of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from compiler.errors import DtypelabError, TypeInferenceError, unknown
from compiler.op.attribute_types import declared, fits, text
from compiler.op.facts import (
    Affine,
    Average,
    Clips,
    Contraction,
    IntegerForm,
    Moves,
    OnnxNode,
    Summation,
    Zeros,
)
from compiler.op.gradient import Gradient
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, Type

if TYPE_CHECKING:
    from compiler.op.stored import Stored
    from compiler.op.sum_bounds import IntegerSums


class Fusion(Enum):
    """How FuseOps may group an operator.

    ELEMENTWISE (each output element reads the elements that broadcast to it) joins the kernel of
    its producer; INJECTIVE (moves elements: reshape, transpose, concatenate) stays alone for now;
    ANCHOR (convolution, dense, pooling, reductions) takes elementwise consumers as its epilogue;
    OPAQUE never fuses.
    """

    ELEMENTWISE = "elementwise"
    INJECTIVE = "injective"
    ANCHOR = "anchor"
    OPAQUE = "opaque"


class Quantized(Enum):
    """How quantize treats an operator.

    WEIGHTED: integer kernel with weights, accumulator and requantize (conv2d, dense). INTEGER: has
    an integer form of its own (add, pooling). SAME: moves values without changing them, so it works
    on integers with its input's parameters. FLOAT: stays in float.
    """

    WEIGHTED = "weighted"
    INTEGER = "integer"
    SAME = "same"
    FLOAT = "float"


@dataclass(frozen=True)
class NoAttrs:
    """For operators without attributes."""


Infer = Callable[[Any, Sequence[TensorType]], Type]
Reference = Callable[..., "Array | tuple[Array, ...]"]


@dataclass(frozen=True, eq=False)
class OpDef:
    """One operator.

    Attributes:
        name: as printed, e.g. `nn.conv2d`. attrs: frozen dataclass of its attributes. arity:
        (least, most) number of operands; most None: any number. infer: (attrs, operand tensor
        types) -> result type; raises TypeInferenceError. reference: (arithmetic, attrs, *storage
        arrays) -> array or tuple: the readable numpy meaning,
            written over the scalar operations of `arithmetic` so that it holds for every dtype.
        lower: (builder, attrs, *input buffers) -> output buffer(s): the loop nest, for any dtype.
        fusion: see Fusion.
        quantized: see Quantized.
        terms: (attrs, operand types) -> how many terms each of its sums has, the bias included.
            An operator that adds up more than two has it, and the attribute `accumulate` (see
            `compiler.op.accumulate`), unless its sums are of integers.
        macs: (attrs, operand types, result type) -> multiply-accumulates, for reports.
        numbered: the reference rounds once for each element of the result (or of an intermediate
            one), operation after operation as the stages of the loop nest do, so that both number
            their roundings alike; stochastic rounding needs it of operators that round.
        view: the result is the first operand's memory, row-major, under another shape.
        second_if_rounded: a view of two operands of equal value: what computes the second alone
            runs only if what computes the first alone has rounded (see `if_exact`).
        rounds: it may round for `if_exact` to take its result nevertheless; it is a kernel's first.
        tables: operands that are read whole, at computed positions: they neither broadcast nor take
            part in layouts.
        appends: the result is the first operand with the second behind it, along its attribute
            `axis`: where the first one's memory has room, nothing but the second is written.
        callee: what it does is not known here: it calls what its attributes name (see
            `compiler.ir.function_calls`).
        effect: it does more than compute its result: never dropped, merged, reordered or folded.
        in_float32: it puts float32 numbers on a grid, or takes them from one: its float operands
            and results are float32, whatever format the operators around it compute in.
        at_source: a machine does it where its operand is made, and costs count it there, though it
            is compiled to a kernel of its own.
        stored: (attrs, operand types) -> what a program keeps of it beside its operands, as their
            dtypes have them (see `compiler.op.stored`), for reports.
        integer_sums: bounds of its sums, of integers (see `compiler.op.sum_bounds`).
        contraction, summation, average, integer_form, moves, zeros, clips, affine: see
            `compiler.op.facts`.
        homogeneous: f(x * s) = f(x) * s for scales s > 0 along the channels, which it keeps apart.
        commutes: op(a, b) is op(b, a), bit for bit.
        function: where all operands but one are scalars, a function of each of its elements, which
            a table can hold between grids of few integers.
        in_order: elements keep their order: where the result has the type of the first operand, it
            is that operand.
        blocked: takes data in NCHW[x]c as it takes it in NCHW, and gives its result so.
        onnx: the ONNX node that it is written as, if that is a plain one (contractions, views and
            clips are written by those facts; see `quantize.onnx.operators`).
        gradient: its rule of differentiation (see `compiler.op.gradient`), or why it has none.
    """

    name: str
    infer: Infer
    reference: Callable[..., Any]
    lower: Callable[..., Any]
    attrs: type = NoAttrs
    arity: tuple[int, int | None] = (1, 1)
    fusion: Fusion = Fusion.OPAQUE
    quantized: Quantized = Quantized.FLOAT
    macs: Callable[[Any, Sequence[TensorType], TensorType], Any] | None = None
    terms: Callable[[Any, Sequence[TensorType]], Any] | None = None
    view: bool = False
    second_if_rounded: bool = False
    rounds: bool = False
    numbered: bool = False
    tables: tuple[int, ...] = ()
    appends: bool = False
    callee: bool = False
    effect: bool = False
    in_float32: bool = False
    at_source: bool = False
    stored: Callable[[Any, Sequence[TensorType]], Stored] | None = None
    contraction: Contraction | None = None
    summation: Summation | None = None
    average: Average | None = None
    moves: Moves | None = None
    zeros: Zeros | None = None
    clips: Clips | None = None
    affine: Affine | None = None
    homogeneous: bool = False
    commutes: bool = False
    function: bool = False
    in_order: bool = False
    blocked: bool = False
    integer_form: IntegerForm | None = None
    integer_sums: IntegerSums | None = None
    onnx: OnnxNode | None = None
    gradient: Gradient | str = ""
    doc: str = field(default="", compare=False)

    def check_attribute(self, name: str) -> None:
        """Refuse a name that no attribute has.

        Raises:
            DtypelabError: suggests the nearest ones.
        """
        known = declared(self.attrs)
        if name not in known:
            raise DtypelabError(f"{self.name}: {unknown('attribute', name, known)}")

    def make_attrs(self, **values: Any) -> Any:
        """Attributes from keywords (lists become tuples).

        Raises:
            DtypelabError: an attribute does not exist or is of another type, or a required one is
                missing.
        """
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        for k, v in given.items():
            self.check_attribute(k)
            wanted = declared(self.attrs)[k]
            if not fits(v, wanted):
                raise DtypelabError(f"{self.name}: {k} must be {text(wanted)}, not {v!r}")
        try:
            return self.attrs(**given)
        except TypeError as e:
            raise DtypelabError(f"{self.name}: {e}") from None

    def infer_type(self, attrs: Any, types: Sequence[Type]) -> Type:
        """Result type for operand types.

        Raises:
            TypeInferenceError: wrong number or kind of operands, or shapes and dtypes that do not
            fit.
        """
        least, most = self.arity
        if len(types) < least or (most is not None and len(types) > most):
            raise TypeInferenceError(f"{self.name} does not take {len(types)} operands")
        for t in types:
            if not isinstance(t, TensorType):
                raise TypeInferenceError(f"{self.name} takes tensors, not {t}")
        return self.infer(attrs, [t for t in types if isinstance(t, TensorType)])

    def __repr__(self) -> str:
        return self.name


REGISTERED: dict[str, OpDef] = {}
"""Operators by name; `compiler.op.library` has all of them."""


def register_op(definition: OpDef) -> OpDef:
    """Add an operator to the registry.

    Raises:
        DtypelabError: the name is taken.
    """
    if definition.name in REGISTERED:
        raise DtypelabError(f"operator {definition.name!r} is already registered")
    REGISTERED[definition.name] = definition
    return definition


def register_ops(*definitions: OpDef) -> tuple[OpDef, ...]:
    """Add several operators to the registry.

    Raises:
        DtypelabError: a name is taken.
    """
    return tuple(map(register_op, definitions))
