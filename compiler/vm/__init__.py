"""The virtual machine: branches, loops, calls and closures around compiled regions of operators."""
