"""How the integers of a layer's weights are chosen: one least squares problem, several solvers.

`problem` states it, `nearest`, `adaround` and `gptq` solve it, `moments` collects its data from
the layer's inputs, `layers` goes through a network and puts the answers into a plan.
"""
