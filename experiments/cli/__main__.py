"""`python -m experiments.cli`: the `dtypelab` command without an installation."""

from experiments.cli.start import main

main()
