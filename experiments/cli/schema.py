"""dtypelab schema."""

from __future__ import annotations

import click

from .common import print_json


@click.command(short_help="JSON schemas for editors: of specifications, configurations, plans.")
@click.argument("what", type=click.Choice(["spec", "train", "config", "plan"]), default="spec")
def schema(what: str) -> None:
    """Print the JSON schema of sweeps (spec), of trainings (train), of --config files (config), or
    of plans (plan).

    Editors complete and check by it what they edit. In TOML the first line names the file:
    #:schema ./spec.schema.json

    Example: dtypelab schema spec
    """
    if what == "spec":
        from experiments.spec.json_schema import spec_schema as found
    elif what == "train":
        from experiments.training.json_schema import training_schema as found
    elif what == "config":
        from quantize.config.json_schema import config_schema as found
    else:
        from quantize.plan.json_schema import plan_schema as found
    print_json(found())
