"""dtypelab inspect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import compiler
from compiler.errors import ConfigError, UnsupportedError
from experiments.files import atomic_path, check_outputs
from experiments.zoo import model_files

from .accumulators import certificates_of, table
from .common import (
    import_engine_option,
    json_option,
    model_argument,
    outputs_option,
    print_json,
    say,
    say_text,
    shape_option,
    shapes_given,
)

if TYPE_CHECKING:
    from compiler.frontend.requirements import ModelNeeds
    from compiler.ir.expr import IRModule


@click.command(short_help="What a model needs: operators, shapes, MACs and parameters.")
@model_argument
@click.option("--text", is_flag=True, help="Print the program as well.")
@click.option(
    "--graph", type=click.Path(path_type=Path), metavar="OUT.svg",
    help="Draw the optimized graph: operators, shapes, dtypes, fused groups.",
)  # fmt: skip
@click.option(
    "--passes",
    is_flag=True,
    help="Build it, and print every pass from import to machine code: whether it ran, what it "
    "changed, how long it took.",
)
@click.option("--target", default="llvm", show_default=True, metavar="T", help="Of --passes.")
@click.option(
    "--opt-level",
    type=click.IntRange(0, 4),
    default=2,
    show_default=True,
    metavar="0..4",
    help="Of --passes and --graph: passes of a higher level do not run.",
)
@click.option(
    "--required-pass",
    multiple=True,
    metavar="PASS",
    help="Of --passes and --graph: runs whatever its level; repeat it for several.",
)
@click.option(
    "--disabled-pass",
    multiple=True,
    metavar="PASS",
    help="Of --passes and --graph: does not run; repeat it for several.",
)
@click.option(
    "--accumulators",
    is_flag=True,
    help="Print how wide the accumulators of its integers, or numbers of a format, must be.",
)
@click.option("--plan", "plan_file", metavar="P.json", help="Of --accumulators: quantized by it.")
@click.option(
    "--dtype", default="float32", metavar="F", help="Of --accumulators: computed in this format."
)
@click.option(
    "--input",
    "file",
    metavar="X.npz",
    help="Of --accumulators: and how wide these inputs need those of integers.",
)
@shape_option
@outputs_option(text="Show only what this output needs.")
@import_engine_option
@json_option
def inspect(
    model: str, text: bool, graph: Path | None, passes: bool, target: str, opt_level: int,
    required_pass: Sequence[str], disabled_pass: Sequence[str], accumulators: bool,
    plan_file: str | None, dtype: str, file: str | None, shapes: Sequence[str],
    chosen: Sequence[str], as_json: bool,
) -> None:  # fmt: skip
    """Show what a model is made of, before anything runs: inputs, outputs, operators, cost.

    The operators of the file are reported first, with those that are not supported and what comes
    nearest to them; a model that cannot be imported is reported all the same, with the reason, and
    the exit status is 2. Of a model with open sizes, what these must be like is said. What a
    quantized model leaves in float is named, with the reason. MACs (multiply-accumulates) are for
    one input. The picture is made by graphviz where it is installed, and by our own layout
    elsewhere. --passes shows the pipeline, and what each of its passes did to this model; kernels
    that were compiled before are not scheduled again.

    --accumulators lists every sum of a quantized model (or of one that --plan quantizes, or of one
    in the format --dtype) with the bits of the narrowest accumulator that provably holds it: at the
    end, at each step, and on the data of --input.

    Example: dtypelab inspect mnist_resnet8 --passes --opt-level 3
    """
    import datatypes  # noqa: F401  (formats are element types of models too)
    from compiler.frontend.requirements import requirements
    from compiler.passes.manager import PassContext
    from compiler.passes.record import PipelineRecord
    from compiler.transform.choose_outputs import choose_outputs

    if graph is not None and graph.suffix != ".svg":
        raise ConfigError(f"--graph {graph}: the picture is SVG; give a name that ends in .svg")
    if not accumulators and (plan_file is not None or dtype != "float32" or file is not None):
        raise ConfigError("--plan, --dtype and --input are for --accumulators: give that as well")
    path = model_files.model_file(model)
    check_outputs([graph], model_files.files_of(model))
    fixed = shapes_given(path, shapes)
    wanted = requirements(path, dict(fixed), model_files.importing_with())
    content: dict[str, Any] = {"model": model, **_needs_content(wanted)}
    record = PipelineRecord()
    instruments = [record] if passes else []
    context = PassContext(opt_level, required_pass, disabled_pass, instruments=instruments)
    with context:
        module = None
        if not wanted.problem:
            module = choose_outputs(model_files.load_model(path, fixed), chosen)
        if module is not None and passes:
            compiler.build(module, target)
            content["passes"] = record.rows(context)
    if module is not None:
        content |= _module_content(module)
        if text:
            content["text"] = module.astext()
        if accumulators:
            content["accumulators"] = certificates_of(model, module, plan_file, dtype, file, shapes)
    if as_json:
        print_json(content)
    else:
        say(*_lines(wanted, content))
        if text and module is not None:
            say_text("\n" + content["text"])
        if accumulators and module is not None:
            say_text("\n" + "\n".join(table(content["accumulators"], file is not None)))
        if passes and module is not None:
            say_text("\n" + record.table(context))
    if module is None:
        raise UnsupportedError(wanted.problem)
    if graph is not None:
        with PassContext(opt_level, required_pass, disabled_pass):
            _draw(module, graph)


def _needs_content(wanted: ModelNeeds) -> dict[str, Any]:
    from compiler.frontend.requirements import MISSING

    return {
        "opset": wanted.opset,
        "other_opsets": wanted.other_opsets,
        "onnx_operators": {o.name: o.count for o in wanted.operators},
        "unsupported_operators": {
            o.name: list(o.nearest) for o in wanted.operators if o.support == MISSING
        },
        "element_types": wanted.dtypes,
        "unsupported_element_types": wanted.unsupported_dtypes,
        "dynamic_axes": {k: [list(axis) for axis in v] for k, v in wanted.dynamic_axes.items()},
        "external_data": wanted.external_data,
        "problem": wanted.problem,
    }


def _module_content(module: IRModule) -> dict[str, Any]:
    from compiler.boundary.assumptions import assumptions
    from compiler.ir.expr import atom_type
    from compiler.ir.handed import handed
    from compiler.transform.analysis import cost
    from compiler.transform.use_integers import UseIntegers

    facts = cost(module)
    inputs = model_files.inputs_of(module)
    first = [str(t.shape[0]) for t in inputs.values() if t.rank and not isinstance(t.shape[0], int)]
    return {
        "inputs": {name: str(kind) for name, kind in inputs.items()},
        "open_first": sorted({*first}),
        "outputs": [str(atom_type(result)) for result in module.main.results],
        "output_names": list(module.attrs["outputs"]),
        "assumptions": [str(a) for a in assumptions(module)],
        "operators": facts.operators,
        "macs": facts.macs,
        "assumed_sizes": facts.assumed,
        "macs_by_dtypes": facts.macs_by_dtypes,
        "integer_share": facts.integer_share,
        "left_in_float": {r.value: r.reason for r in UseIntegers().explain(module)},
        "parameters": facts.parameters,
        "parameter_bytes": facts.parameter_bytes,
        "engine_nodes": [
            {"region": r.name, "engine": r.engine, "nodes": list(r.nodes)} for r in handed(module)
        ],
    }


def _lines(wanted: ModelNeeds, content: dict[str, Any]) -> list[str]:
    from compiler.frontend.requirements import DEFINED, MISSING

    lines = [f"opset       {wanted.opset or 'not given'}"]
    lines += [f"domain      {name} {version}" for name, version in wanted.other_opsets.items()]
    lines.append("needs       " + ", ".join(f"{o.count} x {o.name}" for o in wanted.operators))
    defined = [o.name for o in wanted.operators if o.support == DEFINED]
    if defined:
        lines.append(f"by others   {', '.join(defined)} (ONNX defines them by other operators)")
    if wanted.problem:
        for o in wanted.operators:
            if o.support == MISSING:
                near = f"; nearest: {', '.join(o.nearest)}" if o.nearest else ""
                lines.append(f"MISSING     {o.name} ({o.count} times{near})")
        lines += [f"MISSING     element type {t}" for t in wanted.unsupported_dtypes]
    lines.append("types       " + ", ".join(f"{n} x {t}" for t, n in wanted.dtypes.items()))
    for name, axes in wanted.dynamic_axes.items():
        named = ", ".join(f"axis {axis} ({d})" for axis, d in axes)
        lines.append(f"dynamic     {name}: {named}")
    lines += [f"weights in  {file}" for file in wanted.external_data]
    if wanted.problem:
        return lines
    lines += [f"input       {name}: {kind}" for name, kind in content["inputs"].items()]
    outputs = zip(content["output_names"], content["outputs"], strict=True)
    lines += [f"output      {name}: {kind}" for name, kind in outputs]
    for r in content["engine_nodes"]:
        lines.append(f"{r['engine']:<11} {', '.join(r['nodes'])}")
    lines += [f"assumes     {a}" for a in content["assumptions"]]
    counts = sorted(content["operators"].items())
    return [
        *lines,
        f"MACs        {content['macs']:,}{_in_integers(content['integer_share'])}",
        *_assumed(content),
        *_by_dtypes(content),
        f"parameters  {content['parameters']:,} ({content['parameter_bytes'] / 1024:,.1f} KiB)",
        "operators   " + ", ".join(f"{n} x {name}" for name, n in counts),
    ]


def _assumed(content: dict[str, Any]) -> list[str]:
    """What open sizes were taken for, where that is more than one input, or more is open."""
    sizes = content["assumed_sizes"]
    if not {*sizes} - {*content["open_first"]} and {*sizes.values()} <= {1}:
        return []
    named = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    return [f"            with {named}; --shape fixes the sizes of inputs"]


def _in_integers(share: float) -> str:
    return f" ({100 * share:.1f} % of integers)" if share else ""


def _by_dtypes(content: dict[str, Any]) -> list[str]:
    """Data and weights of a quantized model's products, and why some are floats."""
    if not content["integer_share"] and not content["left_in_float"]:
        return []
    pairs = content["macs_by_dtypes"].items()
    lines = [f"            {n:,} of {pair}" for pair, n in pairs]
    return lines + [f"in float    %{name}: {why}" for name, why in content["left_in_float"].items()]


def _draw(module: IRModule, graph: Path) -> None:
    from compiler.build import optimize
    from compiler.picture import svg_text

    picture = svg_text(optimize(module))
    with atomic_path(graph) as temporary:
        temporary.write_text(picture)
