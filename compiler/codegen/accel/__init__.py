"""Code for accelerators (see `compiler.target.accelerator`): instruction streams, and the text of
the simulator that runs them."""
