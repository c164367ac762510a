"""Tables of accuracy, each from one command: `python -m experiments.accuracy TABLE`."""
