"""dtypelab inspect."""

from __future__ import annotations

import click

from experiments import pipeline

from .common import json_option, model_argument, print_json


@click.command(short_help="Operators, shapes, MACs and parameters of a model.")
@model_argument
@click.option("--text", is_flag=True, help="Print the program as well.")
@json_option
def inspect(model: str, text: bool, as_json: bool) -> None:
    """Show what a model is made of: inputs, outputs, operators, cost.

    MACs (multiply-accumulates) are for one input.

    Example: dtypelab inspect mnist_resnet8 --text
    """
    from compiler.analysis import cost
    from compiler.ir.expr import atom_type

    module = pipeline.load_model(pipeline.model_file(model))
    facts = cost(module)
    inputs = {name: str(kind) for name, kind in pipeline.inputs_of(module).items()}
    outputs = [str(atom_type(result)) for result in module.main.results]
    if as_json:
        content = {
            "model": model,
            "opset": module.attrs.get("opset"),
            "inputs": inputs,
            "outputs": outputs,
            "operators": facts.operators,
            "macs": facts.macs,
            "parameters": facts.parameters,
            "parameter_bytes": facts.parameter_bytes,
        }
        print_json({**content, "text": module.astext()} if text else content)
        return
    lines = [f"input       {name}: {kind}" for name, kind in inputs.items()]
    lines += [f"output      {kind}" for kind in outputs]
    lines += [
        f"opset       {module.attrs.get('opset')}",
        f"MACs        {facts.macs:,}",
        f"parameters  {facts.parameters:,} ({facts.parameter_bytes / 1024:,.1f} KiB)",
        "operators   " + ", ".join(f"{n} x {name}" for name, n in sorted(facts.operators.items())),
    ]
    click.echo("\n".join(lines))
    if text:
        click.echo("\n" + module.astext())
