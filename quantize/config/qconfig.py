"""QConfig: the choices of a quantization scheme, as validated plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from compiler.errors import ConfigError, unknown
from quantize.config.checks import accumulation, check_fields, patterns
from quantize.config.format_choices import check_formats
from quantize.config.overrides import Overrides, deciding, fits, overrides_of
from quantize.config.sites import ATTENTION, OWN, Site


@dataclass(frozen=True)
class QConfig:
    """How a module is quantized. The defaults are the recommended 8-bit scheme.

    Attributes:
        calibrate: how the range of an activation is chosen: `minmax` all of it; `moving_average`
            of the batches' ends; `percentile`; `sigma` the mean and some standard deviations on
            either side; `kl` the threshold that loses least information (Migacz, 8-bit Inference
            with TensorRT, 2017); `mse` the range with the least expected squared error;
            `power_of_two` the same among the scales that are powers of two.
        percentile: share of the values, in percent, inside the range (`calibrate="percentile"`).
        kl_bins: bins of the histogram that `kl` searches.
        momentum: what `moving_average` keeps of a batch's weight at each later batch.
        sigmas: the standard deviations of `sigma`.
        weight_granularity: one scale per `tensor`, or per output `channel`.
        weight_range: integers of weights are as many on either side of 0 (`restricted`, -127 to
            127), one more below (`full`), or lie around a zero point where the weights' range
            wants it (`asymmetric`; kept as int16 if they have 8 bits or more).
        activation_dtype: `uint8` or `int8` storage of activations; `float32` leaves them as they
            are, and only weights are integers (see `quantize.realization.weight_only`).
        activation_granularity: one scale per `tensor`, the only one that networks in integers can
            have; as factors of products, activations may have one per input `channel`, or one per
            `token`, found when it runs (see `quantize.config.sites`).
        key_dtype, value_dtype, probability_dtype: formats of attention's keys, values and
            probabilities, of any kind that activation_dtype may be; empty: as other activations.
        key_granularity, value_granularity, probability_granularity: what has a scale of its own,
            one of `quantize.config.sites.GRANULARITIES`.
        embedding_dtype: format of embeddings, with scales as weights have them; empty: float32.
        logit_dtype: format of the weights of the layer that makes the first result; empty: as other
            weights; `float32` leaves both its factors.
        softmax_dtype, norm_dtype: formats that softmax and normalizations are computed in; empty:
            float32.
        activation_symmetric: the zero point is the middle of the range, instead of where it fits
            best.
        activation_range: `full`, or `restricted`: without the smallest integer (-127 to 127, or 1
            to 255).
        weight_bits, activation_bits: 2 to 16. Fewer than 8 use a part of the storage dtype's range;
            more than 8 are kept as int16, with sums of 64 bits where 32 may not hold them.
        requantize: arithmetic that scales accumulators, sums, products, averages and what is
            concatenated, see `compiler.op.qnn.requantize.ROUNDINGS`; `shift` makes every scale a
            power of two, but divides averages by their counts as `fixed_upward` does; `gemmlowp`
            rounds twice, as TensorFlow Lite does (its sums: see `compiler.op.qnn.add`). Tables,
            softmax and layer norm have arithmetics of their own.
        accumulate: accumulators of conv2d and dense: `sequential` (32 bits, which hold every sum),
            `int<N>_wrap` or `int<N>_saturate` (see `compiler.op.accumulator_width`), `certified`
            (of each layer the narrowest `int<N>_wrap` that provably holds its sums, in the plan;
            products of more than 8 bits keep theirs); or a mapping from names or patterns of nodes,
            of which the first that matches decides. Products of two activations (matmul) have those
            that a pattern or an override gives them, and `certified` ones.
        skip: nodes that stay float: names of values or of ONNX nodes, or patterns with `*` and `?`.
        bias_correction: how the mean error of each layer in integers is taken off its bias: `none`,
            `analytic` or `empirical` (see `quantize.calibration.bias_correction`).
        overrides: pattern of names -> fields that are different there, for example
            `{"conv_1": {"weight_bits": 4}}` (see `quantize.config.overrides`).
        functions: elementwise functions of one value (sigmoid, gelu, x * sigmoid(x) ...) as tables:
            `integer` wherever they lie between integers, `auto` only where that costs no rounding,
            `float` never.
        arithmetic: the same of products and differences of two values, and of sums and products
            with constants.
        softmax: `float`, or `integer` where it lies between integers (see
            `compiler.op.qnn.softmax`).
        layer_norm: `float`, or `integer` where an integer operator reads its result (see
            `compiler.op.qnn.layer_norm`).
        weight_calibrate: weights' scales cover the largest of them (`max`), or have the least
            squared error (`mse`, better with few bits), or the least error of the layer's results
            on the data (`output`, as AWQ clips; see `quantize.calibration.rounding.clipping`).
        weight_rounding: integers of weights, or numbers of their format, are the `nearest`, or
            those of `gptq` or (integers) `adaround`, which calibrate layer by layer (see
            `quantize.calibration.rounding`); `hqq` chooses the zero points of integers with
            weight_range="asymmetric" (see `quantize.plan.half_quadratic`).
        rounding_inputs: calibration inputs that `gptq`, `adaround` and `output` use at most.
        rounding_steps: steps of `adaround`.
        rounding_damping: how little both trust the data: the ridge of their least squares, in units
            of an input's mean square.
        seed: of their sampling.
        equalize: channels between layers get weights of like ranges on both sides
            (see `quantize.calibration.rescaling.cross_layer_equalization`).
        smoothing: how much of the difficulty of what dense layers read is moved into their weights:
            0 (none) to 1; usually 0.5 (see `quantize.calibration.rescaling.smoothquant`). `auto`
            smooths the layer norms with outliers whose readers' error falls by it (see
            `quantize.calibration.rescaling.measured_smoothing`).
        activation_aware: weights that multiply large inputs are made larger, and so rounded more
            finely, as a search finds best (see `quantize.calibration.rescaling.activation_aware`).
        weight_dtype: `int8` (of weight_bits), other integers (`int4`: 2 to 8 bits, symmetric), or
            the name of a number format, codebook or block format (`float8_e4m3fn`, `nf4`,
            `mxfp4_e2m1`; see `quantize.formats`). activation_dtype names any of these as well, or
            `uint8` (uint<N>: with a zero point). With two static integers of 8 bits and one scale a
            channel or tensor, whole networks run in integers. All other pairs are for the factors
            of conv2d, dense and matmul alone; `float32` leaves one side as it is.
        compute: `storage` rounds these factors and computes in float32; `native` computes products
            and sums in the format, accumulated as one of `compiler.op.accumulate.MODES`, and adds
            the bias in float32.
        scales: of formats: any `float32`, or a `power_of_two`.
        scale_dtype: format of the scales of channels, groups and tokens: `float32`, `float16`,
            `bfloat16`, `float8_e8m0fnu` (powers of two, by block_scale_rounding), `float8_e4m3fn`
            (relative to one float32 scale of the tensor), or any other. It goes before `scales`; a
            block format's own goes before both.
        activation_scale_dtype: the same of the scales of activations, keys, values and
            probabilities; empty: as those of weights.
        block_scale_rounding: how scales of float8_e8m0fnu (those of the mx... formats) are found:
            `floor` as the specification says, `ceil`, `even` or `rceil` (see
            `compiler.op.qnn.formats.SCALE_ROUNDINGS`).
        weight_group_size: weights that share a scale with weight_granularity="group"; the last
            group of an output may have fewer.
        mean_weight_bits: weights of sensitive nodes get 8 bits, or are in wide_weight_dtype, as
            long as all weights have so many bits on average; 0 for none (see
            `quantize.search.mixed_precision`).
        float_macs: share of the multiply-accumulates that sensitive nodes may do in float.
        target: `target_metric` on the calibration data that must be reached, with as few of these
            nodes in float as are found to do (see `quantize.search.accuracy_target`); 0 for
            all of them.
        target_metric: `agreement`, the share of inputs with float32's answer, or `sqnr` of the
            first result in decibels.
        format_bias_correction: as bias_correction, of layers in formats, which keep their biases
            with `none`.
        rotate: residual streams are put in a basis in which no channel is larger than the others
            (`seed` is that of its signs; see `quantize.plan.rotation`).
        rotate_heads: queries, keys and values of attention are transformed along each head when it
            runs, for the sake of key_dtype and value_dtype.
        wide_weight_dtype: the format that sensitive nodes' weights in formats get, as long as
            mean_weight_bits allows.

    Raises:
        ConfigError: an unknown field, or a value that does not fit.
    """

    calibrate: str = "mse"
    percentile: float = 99.999
    kl_bins: int = 2048
    momentum: float = 0.9
    sigmas: float = 8.0
    weight_granularity: str = "channel"
    weight_range: str = "restricted"
    activation_dtype: str = "uint8"
    activation_granularity: str = "tensor"
    activation_symmetric: bool = False
    activation_range: str = "full"
    weight_bits: int = 8
    activation_bits: int = 8
    requantize: str = "float32"
    accumulate: str | Mapping[str, str] | tuple[tuple[str, str], ...] = "sequential"
    skip: tuple[str, ...] = ()
    bias_correction: str = "empirical"
    overrides: Mapping[str, Mapping[str, Any]] | Overrides = ()
    weight_calibrate: str = "max"
    weight_rounding: str = "nearest"
    rounding_inputs: int = 128
    rounding_steps: int = 1000
    rounding_damping: float = 0.1
    seed: int = 0
    equalize: bool = False
    smoothing: float | str = "auto"
    activation_aware: bool = False
    weight_dtype: str = "int8"
    compute: str = "storage"
    scales: str = "float32"
    block_scale_rounding: str = "floor"
    weight_group_size: int = 64
    mean_weight_bits: float = 0.0
    float_macs: float = 0.0
    target: float = 0.0
    target_metric: str = "agreement"
    functions: str = "auto"
    arithmetic: str = "auto"
    softmax: str = "float"
    layer_norm: str = "float"
    scale_dtype: str = "float32"
    activation_scale_dtype: str = ""
    format_bias_correction: str = "none"
    wide_weight_dtype: str = ""
    key_dtype: str = ""
    key_granularity: str = "tensor"
    value_dtype: str = ""
    value_granularity: str = "tensor"
    probability_dtype: str = ""
    probability_granularity: str = "tensor"
    rotate: bool = False
    rotate_heads: bool = False
    embedding_dtype: str = ""
    logit_dtype: str = ""
    softmax_dtype: str = ""
    norm_dtype: str = ""

    def __new__(cls, *args: Any, **values: Any) -> QConfig:
        """Refuse unknown fields with a ConfigError, before the dataclass does with a TypeError."""
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise ConfigError(unknown("QConfig field", name, known))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "accumulate", accumulation(self.accumulate))
        check_formats(self)
        object.__setattr__(self, "skip", patterns(self.skip))
        object.__setattr__(self, "overrides", overrides_of(self.overrides))
        for pattern, values in self.rules:
            given = {k: v for k, v in values if k != "skip"}
            try:
                there = replace(self, overrides=(), **given)
                if there.weight_only != self.weight_only and "weight_dtype" not in given:
                    raise ConfigError("activation_dtype='float32' is for the whole network")
                if there.in_formats != self.in_formats:
                    raise ConfigError("to mix integers with number formats, edit the plan")
            except ConfigError as e:
                raise ConfigError(f"overrides of {pattern!r}: {e}") from None

    @property
    def accumulators(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a pattern of nodes and an accumulation; ("*", ...) for all of them."""
        given = self.accumulate
        if isinstance(given, str):
            return (("*", given),)
        return tuple(given.items()) if isinstance(given, Mapping) else given

    @property
    def searches(self) -> bool:
        """Whether precision is to be found by measuring."""
        return bool(self.mean_weight_bits or self.float_macs)

    @property
    def rules(self) -> Overrides:
        """The overrides as pairs of a pattern and pairs of a field and its value."""
        return self.overrides if isinstance(self.overrides, tuple) else overrides_of(self.overrides)

    def for_node(self, names: Iterable[str]) -> QConfig:
        """What this configuration says of a node, or of a value, with these names.

        Of each field, the first override that fits a name and gives the field decides. The result
        has no overrides; its `accumulate` is one name, its `skip` leaves all nodes float or none.
        """
        known = tuple(names)
        chosen: dict[str, Any] = {}
        for pattern, values in self.rules:
            if fits(pattern, known):
                chosen = {**dict(values), **chosen}
        if "accumulate" not in chosen:
            modes = (mode for pattern, mode in self.accumulators if fits(pattern, known))
            chosen["accumulate"] = next(modes, "sequential")
        chosen["skip"] = ("*",) if self.excluding(known) else ()
        chosen["overrides"] = ()
        changed = {k: v for k, v in chosen.items() if getattr(self, k) != v}
        return replace(self, **changed) if changed else self

    def excluding(self, names: Iterable[str]) -> str:
        """What leaves a node with these names in float; empty if nothing does."""
        known = tuple(names)
        found = deciding(self.rules, "skip", known)
        if found is not None:
            pattern, skipped = found
            return f"overrides of {pattern!r}" if skipped else ""
        return next((f"skip={pattern!r}" for pattern in self.skip if fits(pattern, known)), "")

    @property
    def weight_only(self) -> bool:
        """Whether weights are integers and activations stay float32."""
        return not self.in_formats and self.activation_dtype == "float32"

    @property
    def in_formats(self) -> bool:
        """Whether factors alone are numbers of formats (integers among them), each in its own; not
        whole networks in integers, nor weights alone in integers."""
        scales = {self.scale_dtype, self.activation_scale_dtype} - {"", "float32"}
        if self.weight_dtype != "int8" or scales:
            return True
        if any(getattr(self, f"{site}_dtype") for site in (*ATTENTION, *OWN)):
            return True
        if self.activation_dtype == "float32":
            return False
        grouped = self.weight_granularity == "group" or self.activation_granularity != "tensor"
        return grouped or self.activation_dtype not in ("int8", "uint8")

    @property
    def weight_format(self) -> str:
        """The name of the weights' format, where factors are in formats."""
        return f"int{self.weight_bits}" if self.weight_dtype == "int8" else self.weight_dtype

    @property
    def activation_format(self) -> str:
        """The name of the activations' format, where factors are in formats: `uint8` has a zero
        point unless activations are symmetric."""
        if self.activation_dtype not in ("int8", "uint8"):
            return self.activation_dtype
        signed = self.activation_dtype == "int8" or self.activation_symmetric
        return f"{'' if signed else 'u'}int{self.activation_bits}"

    def site(self, name: str) -> Site:
        """What it says of a site, where factors are in formats."""
        if name in ("softmax", "norm"):
            return Site(getattr(self, f"{name}_dtype") or "float32")
        if name in ("embedding", "logit"):
            usual = "float32" if name == "embedding" else self.weight_format
            return Site(getattr(self, f"{name}_dtype") or usual, self.weight_granularity)
        if name == "weight":
            return Site(self.weight_format, self.weight_granularity)
        given = getattr(self, f"{name}_dtype") if name in ATTENTION else ""
        if given:
            return Site(given, getattr(self, f"{name}_granularity"))
        return Site(self.activation_format, self.activation_granularity)

    @property
    def weight_symmetric(self) -> bool:
        """Whether weights have no zero point but 0."""
        return self.weight_range != "asymmetric"

    @property
    def of_values(self) -> QConfig:
        """This configuration, with the format of the scales of activations as its scale_dtype (and
        that of weights in its place, as block_scale_rounding may be for either)."""
        given, other = self.activation_scale_dtype, self.scale_dtype
        return replace(self, scale_dtype=given, activation_scale_dtype=other) if given else self

    def at(self, site: str) -> QConfig:
        """This configuration, with what a site has for weights as its weights'."""
        given = getattr(self, f"{site}_dtype") if site in ("embedding", "logit") else ""
        if not given or given == "float32":
            return self
        bits = 8 if given == "int8" else self.weight_bits
        return replace(self, weight_dtype=given, weight_bits=bits)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> QConfig:
        """The configuration that `to_dict` wrote.

        Raises:
            ConfigError: an unknown field, or a value that does not fit.
        """
        return QConfig(**values)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON-compatible data."""
        one = isinstance(self.accumulate, str)
        accumulate = self.accumulate if one else dict(self.accumulators)
        overrides = {pattern: dict(values) for pattern, values in self.rules}
        skip = list(self.skip)
        return {**asdict(self), "accumulate": accumulate, "skip": skip, "overrides": overrides}

    @staticmethod
    def from_toml(path: str | Path) -> QConfig:
        """The configuration in a TOML file; fields that it leaves out have their defaults.

        Raises:
            ConfigError: the file cannot be read, is not TOML, has an unknown field, or a value that
                does not fit.
        """
        from quantize.config.file import read_toml

        return QConfig(**read_toml(path))

    def to_toml(self, path: str | Path | None = None) -> str:
        """All fields as TOML text that `from_toml` reads; written to `path` too, if given.

        Raises:
            ConfigError: the file cannot be written.
        """
        from quantize.config.file import write_toml

        return write_toml(self.to_dict(), path)
