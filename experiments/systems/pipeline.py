"""Where experiments meets the compiler: a model file and a scheme become something to call.

What the sweep and the command line need of `compiler`, `quantize` and `datatypes` goes through here
and through `model_files` and `number_systems`. They are imported when used, so that `import
experiments` stays quick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from compiler.boundary.elements import numbers
from compiler.errors import InputError, UnsupportedError
from experiments.feeds import UNKNOWN, Examples, Feed, Sample, call_of, filled, run_in_calls
from experiments.measure.plan_columns import plan_columns
from experiments.user_code import activity
from experiments.zoo import model_batches

from . import number_systems
from .engine_choice import OURS, EngineChoice
from .schemes import Scheme

if TYPE_CHECKING:
    from compiler import Executable
    from compiler.ir.expr import IRModule
    from compiler.transform.analysis import ModelCost
    from compiler.transform.certificates import Certificate
    from experiments.devices.client import Device
    from experiments.measure.layer_errors import LayerError
    from quantize import Plan

    Transform = Callable[[IRModule], IRModule]
    Costs = Callable[[IRModule], tuple[ModelCost, IRModule]]
    Certify = Callable[[IRModule], Sequence[Certificate]]

Array = NDArray[np.generic]

#: Calibration inputs go through the observers this many at a time.
CALIBRATION_BATCH = 20
#: Nodes that a note names.
NODES = 5


@dataclass(frozen=True)
class Compiled:
    """An executable for one batch size, called with any number of inputs.

    `lowering`: how its custom datatypes are computed, empty if it has none. `output`: which of its
    results counts, of the model's `outputs` (two of which may be one); the first if it is empty.
    `axes`: those of the results' rows, see `model_batches.result_axes`.
    """

    executable: Executable
    batch: int
    lowering: str = ""
    output: str = ""
    outputs: tuple[str, ...] = ()
    axes: tuple[int | None, ...] = ()

    def predict(self, x: Examples) -> Array:
        """The network's result for inputs [n, ...]: shape [n, ...].

        The last batch is filled up with repetitions of its last input, whose results are dropped.

        Raises:
            InputError: the result has no row for every input.
        """
        calls = -(-len(x) // self.batch)

        def run(part: Examples) -> list[Array]:
            activity.beat()
            return [self.call(part)]

        axis = self.axes[self._names.index(self._name)] if self.axes else UNKNOWN
        (found,) = run_in_calls(run, x, self.batch, (axis,))
        stacked = isinstance(x, Feed) and x.stacked
        if axis is None or stacked:
            if calls == self.batch == 1:
                found = found[None]
        else:
            found = np.moveaxis(found, max(axis, 0), 0) if found.ndim else found
            if calls == self.batch == 1 and found.shape[:1] != (1,):
                found = found[None]
        if found.shape[:1] == (len(x),) and (self.batch == 1 or axis is not None):
            return found
        shape = list(found.shape[calls > 1 :])
        raise InputError(
            f"output {self._name!r} has shape {shape} for {self.batch} inputs, so no row for every "
            f"one: choose another with output = ..., of {', '.join(map(repr, self._names))}"
        )

    def call(self, x: Examples) -> Array:
        """The chosen result, else the first, for exactly `batch` inputs."""
        result = self.executable(call_of(x))
        if isinstance(result, list):
            result = result[self._names.index(self._name)]
        return numbers(np.asarray(result))

    @property
    def _names(self) -> list[str]:
        return list(self.outputs or self.executable.outputs)

    @property
    def _name(self) -> str:
        return self.output or self._names[0]


@dataclass(frozen=True)
class Variant:
    """A network in one scheme: what to record about it, and how to compile it for a batch size.

    `macs_by_dtypes` has "DATA x WEIGHTS" -> multiply-accumulates of one input, `elements`
    "OPERATOR DTYPE" -> elements of results. All costs come from one
    `compiler.transform.analysis.cost`; `traffic_bytes` is the share of one input,
    `activation_bytes` that of a call of the network. `portable_bits` is "yes" where the same
    module gives the same bits on every instruction set, else "no".
    """

    isa: str
    opset: int | None
    macs: int
    size_bytes: int
    bit_operations: int
    activation_bytes: int
    traffic_bytes: int
    macs_by_dtypes: Mapping[str, int]
    elements: Mapping[str, int]
    portable_bits: str
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
    layers: Callable[[Examples, bool], list[LayerError]]
    #: What a reader of the row must know.
    notes: str = ""
    #: Key of `elements` -> the operations that it is made of, see `ModelCost.operations`.
    operations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    #: The certificates of its sums; of quantized ones with what the calibration data need.
    certify: Callable[[], Sequence[Certificate]] = tuple
    #: Of calibrated schemes.
    plan: Plan | None = None


def retype(module: IRModule, scheme: Scheme) -> IRModule:
    """The module with its float32 values in the format of `scheme` (float32: the module itself)."""
    if scheme.kind == "float32":
        return module
    import datatypes

    accumulate = scheme.option("accumulate") or "sequential"
    mixed = number_systems.mixture(scheme.dtype)
    changed: IRModule = (
        datatypes.change_dtype(module, "float32", scheme.dtype, accumulate=accumulate)
        if mixed is None
        else datatypes.change_dtype(module, mixed, accumulate=accumulate)
    )
    return changed


def build(
    module: IRModule,
    scheme: Scheme,
    target: str | Mapping[str, str] = "llvm",
    threads: int = 1,
    device: Device | None = None,
    engines: EngineChoice = OURS,
) -> Executable:
    """Compile a module that is in `scheme`, for this machine, for several targets (see
    `compiler.build`), or, with one target, for a device that measures; what `engines` can compute
    is theirs.

    Raises:
        DtypelabError: an operator or a format has no lowering for the target, the device does not
            answer, or an engine cannot run there.
    """
    import compiler

    lowering = cast("str | None", scheme.option("lowering"))
    if device is not None and isinstance(target, str):
        if engines.names:
            raise UnsupportedError(
                f"engine {engines.names[0]!r} runs in this process, not on a device: leave out one"
            )
        from experiments.devices import executable

        return executable.build(module, device, target, threads, lowering)
    return compiler.build(
        module,
        target=target,
        threads=threads,
        dtype_lowering=lowering,
        engines=engines.names,
        costs=engines.costs,
    )


def with_engines(module: IRModule, engines: EngineChoice) -> tuple[IRModule, object, set[str]]:
    """A module that the interpreter runs as its engines compute it, what must be kept as long as it
    does, and the engines that compute something.

    Raises:
        DtypelabError: an engine cannot compute a region.
    """
    import compiler
    from compiler.engines.linking import linked
    from compiler.ir.handed import handed
    from compiler.ir.regions import regions

    parts = compiler.partition(module, engines.names, engines.costs)
    used = {r.engine for r in (*regions(parts), *handed(parts))}
    return *linked(parts, compiler.Target.parse("llvm")), used


def batches_of(x: Examples, fixed: int | None = None) -> list[Any]:
    """`x` [n, ...] in consecutive batches for calibration, the last one possibly shorter; of
    `fixed` inputs each, if given, without those that are left over.

    Raises:
        InputError: there are fewer than `fixed`.
    """
    size = fixed or CALIBRATION_BATCH
    if fixed is not None and len(x) < fixed:
        raise InputError(f"the model takes batches of {fixed}: calibrate with at least as many")
    end = len(x) - len(x) % fixed if fixed else len(x)
    return [call_of(x[start : min(start + size, end)]) for start in range(0, end, size)]


def prepare(
    path: Path,
    scheme: Scheme,
    *,
    sample_shape: tuple[int, ...] | Sample,
    calibration: Examples,
    target: str,
    threads: int,
    output: str = "",
    device: Device | None = None,
    engines: EngineChoice = OURS,
) -> Variant:
    """Put the model at `path` into `scheme`; `output` is the one that counts, if it has several.
    It runs on the `device`, if one is given, with what `engines` can compute as theirs.

    `calibration` [n, *sample_shape] is used by int8 schemes only. The model is imported and
    transformed for each batch size, so that shapes are known when kernels are chosen.

    Raises:
        DtypelabError: the model cannot be imported, quantized or retyped.
    """
    from compiler.transform.analysis import cost
    from compiler.transform.portability import unportable
    from compiler.transform.preparation import prepare as prepare_module

    fixed = model_batches.fixed_batch(path, sample_shape)
    transform, simulated, costs, certified, facts = _transform(
        path, scheme, sample_shape, calibration, threads, fixed
    )

    def layers(x: Examples, events: bool) -> list[LayerError]:
        from experiments.measure.layer_errors import layer_errors

        if fixed is not None:  # one call
            x = filled(x[:fixed], fixed)
        reference = prepare_module(model_batches.load_for_batch(path, sample_shape, len(x)))
        counted = events and scheme.kind == "format"
        given = call_of(x)
        inputs = list(given.values()) if isinstance(given, dict) else [given]
        return layer_errors(reference, simulated(reference), inputs, counted)

    def compile_for(batch: int) -> Compiled:
        module = transform(model_batches.load_for_batch(path, sample_shape, batch))
        executable = build(module, scheme, target, threads, device, engines)
        names = tuple(module.attrs.get("outputs", ()))
        axes = model_batches.result_axes(path, sample_shape)
        return Compiled(executable, batch, executable.dtype_lowering, output, names, axes)

    per = fixed or 1
    module = prepare_module(model_batches.load_for_batch(path, sample_shape, per))
    opset = module.attrs.get("opset")
    found, realized = costs(module)
    plain = cost(module)
    return Variant(
        isa=device.machine.target(target).isa if device else number_systems.isa_of(target),
        opset=None if opset is None else int(opset),
        fixed_batch=fixed,
        macs=int(plain.macs) // per,
        size_bytes=found.parameter_bytes,
        bit_operations=found.bit_operations // per,
        activation_bytes=found.activation_bytes,
        traffic_bytes=found.traffic_bytes // per,
        macs_by_dtypes={pair: n // per for pair, n in found.macs_by_dtypes.items()},
        elements={key: n // per for key, n in found.elements.items()},
        operations={
            key: {part: n // per for part, n in parts.items()}
            for key, parts in found.operations.items()
        },
        portable_bits="no" if unportable(realized) else "yes",
        compile=compile_for,
        layers=layers,
        certify=lambda: certified(module),
        notes="; ".join(filter(None, [_open_sizes(plain.assumed), _parts(realized)])),
        **facts,
    )


def _open_sizes(assumed: Mapping[str, int]) -> str:
    """What costs took sizes for that are only known while the network runs."""
    named = ", ".join(f"{name} = {size}" for name, size in assumed.items())
    return f"costs are for sizes that are found at run time with {named}" if named else ""


def _parts(realized: IRModule) -> str:
    """Which nodes' sums are formed as the scheme says only in parts."""
    from compiler.transform.partial_sums import partial_sums

    nodes = list(partial_sums(realized))
    if not nodes:
        return ""
    more = f" and {len(nodes) - NODES} more" if len(nodes) > NODES else ""
    named = ", ".join(nodes[:NODES]) + more
    return f"accumulate does not reach all of these sums, whose parts are rounded: {named}"


def _transform(
    path: Path,
    scheme: Scheme,
    sample_shape: tuple[int, ...] | Sample,
    calibration: Examples,
    threads: int,
    fixed_batch: int | None,
) -> tuple[Transform, Transform, Costs, Certify, dict[str, Any]]:
    """The module-to-module function of a scheme, the same with values by the names and in the units
    of float32, what a module costs in the scheme together with that module, prepared, what
    accumulators it needs, and the columns that describe the scheme."""
    import quantize
    from compiler.transform.preparation import prepare as prepare_module

    facts: dict[str, Any] = dict.fromkeys(
        ("lowering", "accumulate", "granularity", "symmetry", "calibrator", "skipped"), ""
    )
    if scheme.calibrated:
        from quantize.search.costs import realized_cost

        config = number_systems.qconfig(dict(scheme.options))
        # Names do not depend on the batch size, so one plan serves all of them.
        module = model_batches.load_for_batch(path, sample_shape, fixed_batch or "N")
        plan = quantize.calibrate(module, batches_of(calibration, fixed_batch), config, threads)

        def costs_in_plan(module: IRModule) -> tuple[ModelCost, IRModule]:
            found, realized = realized_cost(module, plan)
            return found, prepare_module(realized)

        return (
            lambda module: quantize.realize(module, plan),
            lambda module: quantize.simulate(module, plan),
            costs_in_plan,
            lambda _: quantize.certify(module, plan, batches_of(calibration, fixed_batch), threads),
            facts | plan_columns(plan, config) | {"plan": plan},
        )
    from compiler.transform.analysis import cost

    bits = 32
    if scheme.kind == "format":
        mixed = number_systems.mixture(scheme.dtype) is not None
        width = number_systems.format_bits if mixed else number_systems.number_bits
        bits = width(scheme.dtype)
        facts["lowering"] = str(scheme.option("lowering") or "")
        facts["accumulate"] = str(scheme.option("accumulate") or "sequential")
    facts |= {"weight_bits": bits, "activation_bits": bits}
    retyped = partial(retype, scheme=scheme)

    def costs(module: IRModule) -> tuple[ModelCost, IRModule]:
        changed = prepare_module(retyped(module))
        return cost(changed), changed

    def certified(module: IRModule) -> Sequence[Certificate]:
        return () if scheme.kind == "float32" else quantize.certify(retyped(module))

    return retyped, retyped, costs, certified, facts
