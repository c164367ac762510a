"""What every column of a results file means: one sentence, for pages, --help and the README."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.measure.statistics import HOLM

SYSTEM = "system"
"""The name of what `row_names.system_names` gives, which no file has."""

BYTES, OPS, MACS, MS, MICROJOULES = "B", "Op", "MAC", "ms", "µJ"
SHARE, DECIBELS, TIMES, SECONDS, OF_METRIC = "share", "dB", "×", "s", "as metric"
NATS = "nat"
SQUARE_MICROMETRES = "µm²"


@dataclass(frozen=True)
class Meaning:
    """A column: what a table calls it, its unit ("" without one), and one sentence about it.

    `lower_is_better` is None where neither is, or where the metric says.
    """

    title: str
    unit: str
    text: str
    lower_is_better: bool | None = None


def _latency(which: str, text: str) -> Meaning:
    return Meaning(f"{which} latency", MS, f"{text} by the clock, in milliseconds.", True)


#: Column -> what it means: of every results file, then of what is computed from its rows.
MEANINGS: dict[str, Meaning] = {
    "run_id": Meaning("run", "", "The sweep that wrote the row."),
    "schema_version": Meaning(
        "schema", "", "Version of these columns; later versions only add some."
    ),
    "config_hash": Meaning(
        "cell",
        "",
        "Names what was computed: specification, bytes of network and data, and all "
        "definitions of the user that it uses.",
    ),
    "status": Meaning(
        "status",
        "",
        "`ok`, or `error` or `timeout`: then `error` says why; some figures may be there.",
    ),
    "error": Meaning("error", "", "What went wrong in a row that failed."),
    "model": Meaning("network", "", "The network: its name or its file."),
    "model_sha256": Meaning("file (SHA-256)", "", "Digest of the network's file."),
    "opset": Meaning("opset", "", "Version of the ONNX operators that the network uses."),
    "dataset": Meaning("data", "", "The data set: its name or its file."),
    "n_eval": Meaning("inputs", "", "How many inputs the row was judged by."),
    "n_calib": Meaning("calibration inputs", "", "How many inputs the scheme was calibrated with."),
    "seed": Meaning(
        "seed",
        "",
        "Chooses the calibration inputs and the bits that formats with stochastic rounding draw.",
    ),
    "scheme": Meaning("scheme", "", "The number system as the specification names it."),
    "dtype": Meaning("format", "", "The format of values: a float, a described format, or int8."),
    "lowering": Meaning(
        "lowering", "", "How a described format is computed: `vector`, `table` or `library`."
    ),
    "accumulate": Meaning("accumulate", "", "In which format and order sums are formed."),
    "weight_bits": Meaning("weight bits", "bits", "Width of a weight (integers, scaled formats)."),
    "activation_bits": Meaning(
        "activation bits", "bits", "Width of an activation (integers, scaled formats)."
    ),
    "granularity": Meaning(
        "granularity", "", "What shares a scale of weights: tensor, channel, group or block."
    ),
    "symmetry": Meaning(
        "symmetry", "", "Whether ranges of weights and activations are centred on zero."
    ),
    "calibrator": Meaning("calibrator", "", "How ranges were chosen from the calibration inputs."),
    "skipped": Meaning("skipped", "", "Layers that stayed in float, each with the reason."),
    "metric": Meaning("figure", OF_METRIC, "The figure of merit that `metric_name` names."),
    "metric_fp32": Meaning(
        "float32's figure", OF_METRIC, "The figure of merit of float32 on the same inputs."
    ),
    "metric_drop": Meaning(
        "lost",
        OF_METRIC,
        "How much worse than float32's the figure got, also where less is better; below 0 it "
        "got better.",
        True,
    ),
    "sqnr_db": Meaning(
        "SQNR",
        DECIBELS,
        "Signal to quantization noise of the outputs, float32's being the signal: more is "
        "closer, infinite the same bits.",
        False,
    ),
    "cosine": Meaning(
        "cosine", "", "Cosine of the angle between the outputs and float32's: 1 is the same.", False
    ),
    "top1_agreement": Meaning(
        "agreement",
        SHARE,
        "Share of inputs with the same answer (class or text) as float32.",
        False,
    ),
    "size_bytes": Meaning(
        "parameters",
        BYTES,
        "Bytes that are stored: weights, biases, tables, scales and zero points.",
        True,
    ),
    "macs": Meaning(
        "multiply-accumulates",
        MACS,
        "Multiply-accumulates of one input, of the data's sizes; those found at run time count as "
        "1 (`notes`).",
        True,
    ),
    "batch": Meaning("batch", "", "Inputs of one measured call."),
    "threads": Meaning("threads", "", "Threads that a call used."),
    "warmup": Meaning("warm-up", "", "Calls before the measured ones."),
    "runs": Meaning("runs", "", "Measured rounds at least."),
    "latency_ms_min": _latency("least", "The fastest call"),
    "latency_ms_median": _latency("median", "Half of the calls were faster than this,"),
    "latency_ms_mean": _latency("mean", "The mean of all calls"),
    "latency_ms_p90": _latency("90 %", "Nine of ten calls were faster than this,"),
    "latency_ms_p99": _latency("99 %", "99 of 100 calls were faster than this,"),
    "latency_ms_stdev": _latency("deviation of", "The standard deviation of the calls"),
    "speedup_vs_fp32": Meaning(
        "speed-up",
        TIMES,
        "How many times as fast as float32, the two measured in turn in one process.",
        False,
    ),
    "target": Meaning("target", "", "What the network was compiled for."),
    "isa": Meaning("instruction set", "", "The vector instructions that were used."),
    "cpu": Meaning("processor", "", "The processor that it ran on."),
    "cores": Meaning("cores", "", "How many processors the machine offered."),
    "os": Meaning("system", "", "The operating system and its version."),
    "python": Meaning("Python", "", "Version of Python."),
    "numpy": Meaning("numpy", "", "Version of numpy."),
    "llvmlite": Meaning("llvmlite", "", "Version of llvmlite, which generates the code."),
    "dtypelab_version": Meaning("dtypelab", "", "Version of dtypelab."),
    "git_rev": Meaning("revision", "", "The commit of the working tree that ran."),
    "git_dirty": Meaning("changed", "", "`true` where that tree had uncommitted changes."),
    "started_utc": Meaning("measured", "", "When the row was begun, in universal time."),
    "duration_s": Meaning("duration", SECONDS, "How long the row took, in seconds."),
    "metric_drop_low": Meaning(
        "lost, at least",
        OF_METRIC,
        "Lower end of the 95 % interval of the drop, paired by input: Bonett and Price for shares, "
        "bootstrap otherwise; without labels one-sided (Clopper and Pearson).",
    ),
    "metric_drop_high": Meaning(
        "lost, at most", OF_METRIC, "Upper end of the 95 % interval of the drop."
    ),
    "p_value": Meaning(
        "p",
        "",
        "How likely so large a difference from float32 is by chance: McNemar's exact test for "
        "shares, else permutation; not corrected for other rows.",
    ),
    "bit_operations": Meaning(
        "bit operations", OPS, "Multiply-accumulates times the widths of both operands.", True
    ),
    "activation_bytes": Meaning(
        "activations", BYTES, "The most bytes that are alive at once between kernels.", True
    ),
    "energy_uj": Meaning(
        "energy",
        MICROJOULES,
        "Microjoules of one input, by the prices of `cost_source`: all that the row knows of.",
        True,
    ),
    "config": Meaning("specification", "", "A specification of this row alone, as JSON."),
    "metric_name": Meaning(
        "judged by",
        "",
        "The figure of merit; `~float32` behind it: float32's answers stand in for labels.",
    ),
    "dataset_sha256": Meaning("data (SHA-256)", "", "Digest of the data."),
    "repeat": Meaning("repeat", "", "Which repetition of the same cell, that is of its latency."),
    "latency_rounds": Meaning("rounds", "", "Rounds of latency that were measured."),
    "speedup_low": Meaning(
        "speed-up, at least", TIMES, "Lower end of the 95 % interval of the speed-up."
    ),
    "speedup_high": Meaning(
        "speed-up, at most", TIMES, "Upper end of the 95 % interval of the speed-up."
    ),
    "latency_lost": Meaning(
        "time lost", SHARE, "Share of the time that others took from the measuring thread."
    ),
    "latency_load": Meaning("load", "", "How many processors others kept busy meanwhile."),
    "latency_noise": Meaning(
        "latency disturbed",
        "",
        "What the latencies suffer from: `preempted`, `loaded`, `imprecise`; or `none`.",
    ),
    "traffic_bytes": Meaning(
        "moved", BYTES, "Bytes that one input reads and writes, all that is stored included.", True
    ),
    "energy_memory_uj": Meaning(
        "energy of memory", MICROJOULES, "The part of the energy that moves bytes.", True
    ),
    "notes": Meaning(
        "notes",
        "",
        "What a reader must know of the row: why a figure is NaN, which sums `accumulate` does "
        "not reach.",
    ),
    "metric_se": Meaning(
        "standard error",
        OF_METRIC,
        "Standard error of the figure, inputs (of language models, sequences) being drawn: by the "
        "jackknife.",
        True,
    ),
    "tokens": Meaning(
        "tokens", "", "How many tokens count: those with a label that are not masked."
    ),
    "kl_float32": Meaning(
        "KL to float32",
        NATS,
        "Mean over tokens of the divergence KL(float32, network) of their scores, in nats.",
        True,
    ),
    "kl_float32_se": Meaning(
        "standard error of KL",
        NATS,
        "Standard error of that mean, sequences being drawn.",
        True,
    ),
    "kl_float32_p99": Meaning(
        "KL of the 99th percentile",
        NATS,
        "The divergence that 99 of 100 tokens stay below.",
        True,
    ),
    "top_token_agreement": Meaning(
        "token agreement",
        SHARE,
        "Share of tokens at which the network and float32 put the same token first.",
        False,
    ),
    "cost_source": Meaning(
        "source of costs",
        "",
        "Where all prices of the row come from: a published table, `gate_model`, `circuits`, or "
        "`specification` for tables of its own.",
    ),
    "machine": Meaning(
        "machine", "", "What runs the code where this processor does not: `wasmtime`, a device, ..."
    ),
    "emulated": Meaning(
        "emulated",
        "",
        "Whether that is an emulator: `yes`, and there are no milliseconds, or `no`.",
    ),
    "instructions": Meaning(
        "instructions",
        "",
        "Instructions of a call, where an emulator counts them: they are no cycles.",
        True,
    ),
    "cycles": Meaning(
        "cycles",
        "",
        "Cycles of an accelerator that is simulated, for one input; what it lacks, and this "
        "machine computes, takes none of them.",
        True,
    ),
    "utilization": Meaning(
        "utilization",
        "",
        "The network's MACs of those that the accelerator's multipliers could have made meanwhile.",
        False,
    ),
    "engine": Meaning(
        "engine",
        "",
        "Other code generators that compute parts of the network, with `@measured` where costs "
        "decided which parts.",
    ),
    "engine_nodes": Meaning(
        "nodes of engines",
        "",
        "The regions of engines and their nodes, as JSON; where measured costs decided, also those "
        "we kept, with both times.",
    ),
    "mac_gates": Meaning(
        "gates of a MAC",
        "",
        "Gates of the unit that does a MAC, the mean over all of them; `circuits` counts NAND2 "
        "equivalents.",
        True,
    ),
    "mac_area_um2": Meaning(
        "area of a MAC",
        SQUARE_MICROMETRES,
        "Area of the unit that does a MAC, the mean over all of them.",
        True,
    ),
    "energy_mac_uj": Meaning(
        "energy of MACs",
        MICROJOULES,
        "The part of the energy that MACs take.",
        True,
    ),
    "energy_other_uj": Meaning(
        "energy of other operators",
        MICROJOULES,
        "The part of the energy that other operators take; `notes` names those without a price.",
        True,
    ),
    "accumulator_bits": Meaning(
        "accumulator",
        "bits",
        "Width that provably holds the widest whole sum of the network, exactly; where "
        "`certificates` was asked for.",
        True,
    ),
    "accumulator_data_bits": Meaning(
        "accumulator for the data",
        "bits",
        "Width that loses nothing on the calibration inputs, of the widest sum of integers.",
        True,
    ),
    "accumulator_node": Meaning("widest sum", "", "The node whose sums need `accumulator_bits`."),
    "outputs_not_finite": Meaning(
        "not finite",
        "",
        "Inputs with a NaN or an infinity anywhere in their outputs; the status of such a row is "
        "`ok`.",
        True,
    ),
    "portable_bits": Meaning(
        "portable bits", "", "`yes` where every processor gives the same bits, else `no`."
    ),
    "detectable_drop": Meaning(
        "detectable",
        OF_METRIC,
        "The smallest drop that so many inputs can show: a smaller one may be there unseen.",
    ),
}

#: What is computed from the rows of a file.
COMPUTED: dict[str, Meaning] = {
    SYSTEM: Meaning(
        "number system", "", "The scheme, and what else tells its rows of one network apart."
    ),
    HOLM: Meaning(
        "p (Holm)",
        "",
        "The p-value corrected for all rows of the file together, by Holm's method.",
    ),
}


def meaning(column: str) -> Meaning:
    """What a column means, one that is computed included.

    Raises:
        KeyError: there is none.
    """
    return MEANINGS.get(column) or COMPUTED[column]


def markdown_table() -> str:
    """The table of all columns as results/README.md holds it."""
    lines = [f"| `{name}` | {m.unit} | {m.text} |" for name, m in {**MEANINGS, **COMPUTED}.items()]
    return "\n".join(["| column | unit | meaning |", "|---|---|---|", *lines, ""])
