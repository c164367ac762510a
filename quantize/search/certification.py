"""certify: how wide the accumulators of a network must be, proven and measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from compiler.ir.expr import IRModule, tensor_type
from compiler.transform.certificates import Certificate, bits_of, certificates
from compiler.transform.use_integers import UseIntegers
from compiler.types.dtypes import Array
from quantize.calibration.calibrate import Batch, named_batches
from quantize.calibration.running import Runner
from quantize.plan.plan import Plan
from quantize.realization.certified import realized_certificates
from quantize.search.data_sums import averaged, sums_of
from quantize.search.format_sums import format_sums


def certify(
    mod: IRModule,
    plan: Plan | None = None,
    batches: Iterable[Batch] | None = None,
    threads: int = 1,
) -> tuple[Certificate, ...]:
    """One certificate for every sum of integers, or of numbers of a format, in program order.

    Args:
        mod: the float32 module that `plan` was made for; or, without a plan, one in integers or in
            a number format.
        batches: data, as of `quantize.calibrate`, of which the sums are looked at too: the
            narrowest accumulators that lose nothing on these are `Certificate.data_bits`, where the
            sums are values of their own, or those of an average (sums of groups are not), or of
            numbers of a format (whose least bit is the certificate's).
        threads: threads that the network runs on.

    Raises:
        ConfigError: as `quantize.realize`.
        InputError: batches that do not fit.
    """
    if plan is None:
        part_of: dict[str, str] = {}
        mod = UseIntegers()(mod)
        found = certificates(mod)
    else:
        mod, part_of, found = realized_certificates(mod, plan.sequential)
    if batches is not None:
        found = _measured(mod, found, batches, threads)
    return tuple(replace(c, node=part_of.get(c.node, c.node)) for c in found)


def _measured(
    mod: IRModule, found: tuple[Certificate, ...], batches: Iterable[Batch], threads: int
) -> tuple[Certificate, ...]:
    """The certificates with what the sums of the data need."""
    made = {b.var.name: b for b in mod.main.bindings}
    held = [made[c.node] for c in found if c.node in made]
    sums = [b.var for b in held if str(tensor_type(b.var).dtype) in ("int32", "int64")]
    averages = [(b, x) for b in held if (x := averaged(b)) is not None and x.name in made]
    averages = [(b, x) for b, x in averages if tensor_type(x).dtype.is_integer]
    formats = [s for c in found if c.node in made and (s := format_sums(c, made[c.node], threads))]
    formats = [s for s in formats if all(x.name in made for x in s.wanted)]
    operands = dict.fromkeys([*(x for _, x in averages), *(x for s in formats for x in s.wanted)])
    run = Runner(mod, list(dict.fromkeys([*sums, *operands])), threads, {*sums} - {*operands})
    ends: dict[str, tuple[int, int]] = {}

    def look(name: str, values: Array) -> None:
        low, high = ends.get(name, (0, 0))
        if values.size:
            ends[name] = min(low, int(values.min())), max(high, int(values.max()))

    for batch in named_batches(mod, batches):
        values = dict(zip(run.wanted, run(batch), strict=True))
        for v in sums:
            look(v.name, values[v])
        for b, x in averages:
            look(b.var.name, sums_of(b, values[x]))
        for s in formats:
            s.look(values)
    ends |= {s.c.node: s.ends for s in formats}
    return tuple(
        replace(c, data_bits=bits_of(*ends[c.node])) if c.node in ends else c for c in found
    )
