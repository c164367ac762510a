"""calibrate and quantize: from a module and data to a plan, and to the integer graph.

What a configuration asks to be searched (`mean_weight_bits`, `float_macs`, `target`) is found by
`quantize.search`, which calibrates again and again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from compiler.ir.expr import IRModule
from quantize.annotation.annotate import prepared
from quantize.calibration.calibrate import Batch, calibrated, named_batches
from quantize.calibration.running import processors
from quantize.config.qconfig import QConfig
from quantize.plan.plan import Plan

if TYPE_CHECKING:
    from quantize.search.accuracy_target import Measure


def calibrate(
    mod: IRModule,
    batches: Iterable[Batch],
    config: QConfig | None = None,
    threads: int | None = None,
    measure: Measure | None = None,
) -> Plan:
    """A plan whose ranges are those of the values that `batches` give rise to.

    Memory does not grow with the number of batches, unless the configuration searches (it has
    `mean_weight_bits` or `float_macs`): then all of them are kept, to be run again. The same
    batches give the same plan, with any number of threads.

    Args:
        mod: a float32 module, prepared or not.
        batches: arrays (modules with one input), name -> array dicts, or tuples of arrays in the
            order of the inputs, batch dimension first; a single array of the input's rank, a single
            dict, or a single tuple for a module with several inputs, is one batch.
        config: the scheme; without it the recommended 8-bit scheme.
        threads: threads that the network runs on; as many as this process has processors, if none
            are given.
        measure: judges the first result of a quantized network, batch by batch, against float32's,
            for `config.target`: more is better. Without it, `config.target_metric` does.

    Raises:
        InputError: no data, data of the wrong shape or dtype, or values that are NaN or infinite.
        ConfigError: a pattern of `config.skip` fits no node, or one of `config.accumulate` or
            `config.overrides` decides nothing; `config.target` is not reached.
    """
    config = config or QConfig()
    threads = processors() if threads is None else threads
    if config.searches:
        from quantize.search.accuracy_target import search

        kept = named_batches(mod, batches)
        again = partial(calibrate, prepared(mod), kept, threads=threads)
        return search(mod, kept, config, again, threads, measure)
    return calibrated(mod, batches, config, threads)


def quantize(
    mod: IRModule,
    batches: Iterable[Batch],
    config: QConfig | None = None,
    boundary: bool = True,
) -> IRModule:
    """The integer graph of `mod`: `realize(mod, calibrate(mod, batches, config))`.

    Raises:
        See `calibrate`.
    """
    from quantize.realization.realize import realize

    mod = prepared(mod)  # once for both
    return realize(mod, calibrate(mod, batches, config), boundary=boundary)
