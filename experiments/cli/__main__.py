"""`python -m experiments.cli`: the `dtypelab` command without an installation."""

from experiments.cli.main import main

main()
