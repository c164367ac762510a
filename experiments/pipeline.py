"""Where experiments meets the compiler: a model file and a scheme become something to call.

Everything that the sweep and the command line need of `compiler`, `quantize` and `datatypes` goes
through here, imported only when used, so that `import experiments` stays quick.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError, DtypelabError, InputError, unknown

from . import zoo
from .plan_columns import plan_columns
from .schemes import Option, Scheme

if TYPE_CHECKING:
    from compiler import Executable
    from compiler.ir.expr import IRModule
    from compiler.ir.types import TensorType
    from quantize import QConfig

    from .layers import LayerError

    Transform = Callable[[IRModule], IRModule]

Array = NDArray[np.generic]

#: Calibration inputs go through the observers this many at a time.
CALIBRATION_BATCH = 20


@dataclass(frozen=True)
class Compiled:
    """An executable for one batch size, called with any number of inputs.

    `lowering`: how its custom datatypes are computed, empty if it has none.
    """

    executable: Executable
    batch: int
    lowering: str = ""

    def predict(self, x: Array) -> Array:
        """The network's first result for inputs [n, ...]: shape [n, ...].

        The last batch is filled up with repetitions of its last input, whose results are dropped.
        """
        parts = []
        for start in range(0, len(x), self.batch):
            part = x[start : start + self.batch]
            missing = self.batch - len(part)
            filled = np.concatenate([part, np.repeat(part[-1:], missing, axis=0)])
            parts.append(self.call(filled)[: len(part)])
        return np.concatenate(parts)

    def call(self, x: Array) -> Array:
        """The first result for exactly `batch` inputs."""
        result = self.executable(x)
        return np.asarray(result[0] if isinstance(result, list) else result)


@dataclass(frozen=True)
class Variant:
    """A network in one scheme: what to record about it, and how to compile it for a batch size.

    `macs_by_dtypes` has "DATA x WEIGHTS" -> multiply-accumulates of one input, `elements`
    "OPERATOR DTYPE" -> elements of results.
    """

    isa: str
    opset: int | None
    macs: int
    size_bytes: int
    bit_operations: int
    activation_bytes: int
    macs_by_dtypes: Mapping[str, int]
    elements: Mapping[str, int]
    lowering: str
    accumulate: str
    weight_bits: int
    activation_bits: int
    granularity: str
    symmetry: str
    calibrator: str
    skipped: str
    compile: Callable[[int], Compiled]
    #: Inputs of one call where the network takes no other number, else None.
    fixed_batch: int | None
    #: Inputs [n, ...], and whether to count events -> how far every value is from float32.
    layers: Callable[[Array, bool], list[LayerError]]


def format_names() -> list[str]:
    """Names of the built-in formats."""
    import datatypes

    return [str(name) for name in datatypes.list_formats()]


def block_format_names() -> tuple[str, ...]:
    """Names of the block formats."""
    from quantize.scaled.blocks import block_formats

    return block_formats()


def format_bits(name: str) -> int:
    """Width of a format, or of a registered datatype written `custom[NAME]BITS`; of a mixture, the
    largest.

    Raises:
        DtypelabError: there is none of this name.
    """
    import datatypes

    mixed = mixture(name)
    if mixed is not None:
        parts = (part if isinstance(part, str) else part[0] for part in mixed.values())
        return max(map(format_bits, parts))
    if name.startswith("custom["):
        from compiler.dtypes import DType

        return DType.parse(name).bits
    return int(datatypes.get(name).nbits)


def definitions(name: str) -> dict[str, str]:
    """The formats of a scheme that this process defined -> a hash of what each of them means."""
    from datatypes.formats import get
    from datatypes.formats.catalogue import is_builtin
    from datatypes.formats.hashing import digest

    mixed = mixture(name)
    # "A x W" of a scaled scheme; what block formats are made of counts too.
    parts = (
        [p for part in name.split(" x ") for p in _parts(part)]
        if mixed is None
        else [*mixed.values()]
    )
    names = {part if isinstance(part, str) else part[0] for part in parts}
    own = sorted(n for n in names if not n.startswith("custom[") and not is_builtin(n))
    return {n: digest(get(n)) for n in own if n != "float32"}


def _parts(name: str) -> tuple[str, ...]:
    """A format's name; of a block format, those of its elements and scales."""
    from quantize.scaled.blocks import block_format

    block = block_format(name)
    return (name,) if block is None else (block.element, block.scale)


def check_dtype(name: str) -> None:
    """Raise a ConfigError unless `name` is a dtype that numbers of a network can have."""
    import re

    if re.fullmatch(r"float(16|32|64)|u?int(4|8|16|32|64)", name):
        return
    try:
        format_bits(name)
    except DtypelabError as error:
        names = ["float32", "int8", "uint8", "int32", *format_names()]
        raise ConfigError(unknown("dtype", name, names)) from error


def check_operand_format(name: str) -> None:
    """Raise a ConfigError unless scaled factors can be in what is called `name`."""
    if name == "float32" or name in block_format_names():
        return
    try:
        format_bits(name)
    except DtypelabError:
        names = ["float32", *block_format_names(), *format_names()]
        raise ConfigError(unknown("format", name, names)) from None


def mixture(dtype: str) -> dict[str, str | tuple[str, str]] | None:
    """Pattern of layer names -> format, or (format, accumulation), if `dtype` is written as an
    inline TOML table.

    Raises:
        ConfigError: it starts like one, but is none.
    """
    if not dtype.startswith("{"):
        return None
    try:
        table = tomllib.loads(f"mixture = {dtype}")["mixture"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f'formats by layer are written {{"conv*" = "posit8_es0", "*" = "bfloat16"}}: {error}'
        ) from None
    mixed = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    names = [(v,) if isinstance(v, str) else v for v in mixed.values()]
    fits = (
        isinstance(n, tuple) and len(n) <= 2 and n and all(isinstance(x, str) for x in n)
        for n in names
    )
    if not names or not all(fits):
        raise ConfigError(
            f"{dtype}: every pattern of layer names needs the name of a format, or the list of a "
            "format and an accumulation"
        )
    return mixed


def isa_of(target: str) -> str:
    """The instruction set that a target's kernels use, e.g. `avx512_vnni`."""
    import compiler

    return str(compiler.Target.parse(target).isa)


def check_lowering(name: str) -> None:
    """Raise a ConfigError unless `name` is a way to compute custom datatypes."""
    from compiler.dtype_lowering import LOWERINGS

    if name not in LOWERINGS:
        raise ConfigError(unknown("datatype lowering", name, LOWERINGS))


def accumulated_kinds(mode: str) -> tuple[str, ...]:
    """The kinds of schemes whose sums can be formed this way.

    Raises:
        ConfigError: there is no such accumulation.
    """
    from compiler.op.accumulate import MODES, unknown_mode
    from compiler.op.width import width

    if mode == "sequential":
        return ("int8", "scaled", "format")
    if mode in MODES:
        return ("scaled", "format")
    if width(mode) is not None:
        return ("int8",)
    raise ConfigError(unknown_mode(mode))


def check_qconfig(options: Mapping[str, Option]) -> None:
    """Raise a ConfigError unless `options` make a `quantize.QConfig`."""
    qconfig(options)


def check_target(text: str) -> None:
    """Raise a DtypelabError unless `text` is a target that this machine can run."""
    isa_of(text)


def qconfig(options: Mapping[str, Any]) -> QConfig:
    """A `quantize.QConfig` with these fields.

    Raises:
        ConfigError: an unknown field or a value that does not fit.
    """
    import datatypes  # noqa: F401  (its formats may be named)
    import quantize

    return quantize.QConfig(**options)


def model_file(name_or_path: str) -> Path:
    """Path of a model: a shipped name, or a file.

    Raises:
        ConfigError: there is neither.
    """
    path = zoo.find(name_or_path) or Path(name_or_path)
    if path.is_file():
        return path
    if path.suffix == ".onnx" or path.parent != Path():
        raise ConfigError(f"there is no model file {path}")
    raise ConfigError(
        f"{unknown('model', name_or_path, zoo.sources())} (or the path of an .onnx file)"
    )


#: Input name -> dimensions, hashable; a string is a symbolic dimension.
Shapes = tuple[tuple[str, tuple[int | str, ...]], ...]


@lru_cache(maxsize=8)
def load_model(path: Path, shapes: Shapes = ()) -> IRModule:
    """Import a model, with the shapes of these inputs fixed.

    Raises:
        DtypelabError: the file is no model that we can import, or the shapes do not fit it.
    """
    import compiler

    module: IRModule = compiler.from_onnx(path, shapes=dict(shapes) or None)
    return module


def inputs_of(module: IRModule) -> dict[str, TensorType]:
    """The model's inputs in order: the name in the model file -> type."""
    from compiler.ir.expr import tensor_type

    parameters = module.main.params
    names = module.attrs.get("inputs") or [parameter.name for parameter in parameters]
    return dict(zip(names, map(tensor_type, parameters), strict=True))


def load_for_batch(path: Path, sample_shape: tuple[int, ...], batch: int | str) -> IRModule:
    """Import a model with its single input [batch, *sample_shape]; a string names a symbolic size.

    Raises:
        DtypelabError: as `load_model`, or the model has several inputs.
    """
    names = list(_declared(path))
    if len(names) != 1:
        raise InputError(f"data sets feed models with one input; {path.name} has {names}")
    return load_model(path, ((names[0], (batch, *sample_shape)),))


@lru_cache(maxsize=8)
def _declared(path: Path) -> dict[str, tuple[int | None, ...] | None]:
    """The inputs of a model file; a model whose sizes are open may need them to be imported."""
    from compiler.frontend.model_inputs import model_inputs

    return model_inputs(path)


@lru_cache(maxsize=64)
def size_of(path: Path, sample_shape: tuple[int, ...]) -> tuple[int, int]:
    """Multiply-accumulates of one input, and how many operators there are.

    Raises:
        DtypelabError: as `load_for_batch`.
    """
    from compiler.analysis import cost
    from compiler.transform.preparation import prepare as prepare_module

    batch = _fixed_batch(path, sample_shape) or 1
    size = cost(prepare_module(load_for_batch(path, sample_shape, batch)))
    return size.macs // batch, sum(size.operators.values())


def retype(module: IRModule, scheme: Scheme) -> IRModule:
    """The module with its float32 values in the format of `scheme` (float32: the module itself)."""
    if scheme.kind == "float32":
        return module
    import datatypes

    accumulate = scheme.option("accumulate") or "sequential"
    mixed = mixture(scheme.dtype)
    changed: IRModule = (
        datatypes.change_dtype(module, "float32", scheme.dtype, accumulate=accumulate)
        if mixed is None
        else datatypes.change_dtype(module, mixed, accumulate=accumulate)
    )
    return changed


def build(module: IRModule, scheme: Scheme, target: str = "llvm", threads: int = 1) -> Executable:
    """Compile a module that is in `scheme`.

    Raises:
        DtypelabError: an operator or a format has no lowering for the target.
    """
    import compiler

    executable: Executable = compiler.build(
        module, target=target, threads=threads, dtype_lowering=scheme.option("lowering")
    )
    return executable


def batches_of(x: Array, fixed: int | None = None) -> list[Array]:
    """`x` [n, ...] in consecutive batches for calibration, the last one possibly shorter; of
    `fixed` inputs each, if given, without those that are left over.

    Raises:
        InputError: there are fewer than `fixed`.
    """
    size = fixed or CALIBRATION_BATCH
    if fixed is not None and len(x) < fixed:
        raise InputError(f"the model takes batches of {fixed}: calibrate with at least as many")
    end = len(x) - len(x) % fixed if fixed else len(x)
    return [x[start : min(start + size, end)] for start in range(0, end, size)]


def _fixed_batch(path: Path, sample_shape: tuple[int, ...]) -> int | None:
    """The batch size that a model declares, if it can be imported for no other one."""
    shape = next(iter(_declared(path).values()), None)
    first = shape[0] if shape else None
    if first is None:
        return None
    try:
        load_for_batch(path, sample_shape, first + 1)
    except DtypelabError:
        return first
    return None


def prepare(
    path: Path,
    scheme: Scheme,
    *,
    sample_shape: tuple[int, ...],
    calibration: Array,
    target: str,
    threads: int,
) -> Variant:
    """Put the model at `path` into `scheme`.

    `calibration` [n, *sample_shape] is used by int8 schemes only. The model is imported and
    transformed for each batch size, so that shapes are known when kernels are chosen.

    Raises:
        DtypelabError: the model cannot be imported, quantized or retyped.
    """
    from compiler.analysis import cost
    from compiler.transform.preparation import prepare as prepare_module

    fixed = _fixed_batch(path, sample_shape)
    transform, simulated, facts = _transform(
        path, scheme, sample_shape, calibration, threads, fixed
    )

    def layers(x: Array, events: bool) -> list[LayerError]:
        from .layers import layer_errors

        reference = prepare_module(load_for_batch(path, sample_shape, len(x)))
        counted = events and scheme.kind == "format"
        return layer_errors(reference, simulated(reference), [x], counted)

    def compile_for(batch: int) -> Compiled:
        module = transform(load_for_batch(path, sample_shape, batch))
        executable = build(module, scheme, target, threads)
        return Compiled(executable, batch, executable.dtype_lowering)

    per = fixed or 1
    module = prepare_module(load_for_batch(path, sample_shape, per))
    opset = module.attrs.get("opset")
    changed, planned = cost(prepare_module(transform(module))), facts.pop("cost", None)
    return Variant(
        isa=isa_of(target),
        opset=None if opset is None else int(opset),
        fixed_batch=fixed,
        macs=int(cost(module).macs) // per,
        size_bytes=changed.parameter_bytes - (planned.saved_bytes if planned else 0),
        bit_operations=(planned or changed).bit_operations // per,
        activation_bytes=changed.activation_bytes,
        macs_by_dtypes={pair: n // per for pair, n in changed.macs_by_dtypes.items()},
        elements={key: n // per for key, n in changed.elements.items()},
        compile=compile_for,
        layers=layers,
        **facts,
    )


def _transform(
    path: Path,
    scheme: Scheme,
    sample_shape: tuple[int, ...],
    calibration: Array,
    threads: int,
    fixed_batch: int | None,
) -> tuple[Transform, Transform, dict[str, Any]]:
    """The module-to-module function of a scheme, the same with values by the names and in the units
    of float32, and the columns that describe it."""
    facts: dict[str, Any] = dict.fromkeys(
        ("lowering", "accumulate", "granularity", "symmetry", "calibrator", "skipped"), ""
    )
    if scheme.calibrated:
        import quantize
        from quantize.annotation import prepared
        from quantize.costs import plan_cost

        config = qconfig(dict(scheme.options))
        # Names do not depend on the batch size, so one plan serves all of them.
        module = load_for_batch(path, sample_shape, fixed_batch or "N")
        plan = quantize.calibrate(module, batches_of(calibration, fixed_batch), config, threads)
        return (
            lambda module: quantize.realize(module, plan),
            lambda module: quantize.simulate(module, plan),
            facts | plan_columns(plan, config) | {"cost": plan_cost(prepared(module), plan)},
        )
    bits = 32
    if scheme.kind == "format":
        bits = format_bits(scheme.dtype)
        facts["lowering"] = str(scheme.option("lowering") or "")
        facts["accumulate"] = str(scheme.option("accumulate") or "sequential")
    facts |= {"weight_bits": bits, "activation_bits": bits}
    retyped = partial(retype, scheme=scheme)
    return retyped, retyped, facts
