"""An interpreter of PTX: kernels for NVIDIA's GPUs run here, on any CPU, in numpy.

    module = parse(text)
    memory = Memory()
    launch(module, "kernel", grid=(4, 1, 1), block=(128, 1, 1), args=[address, 7], memory=memory)

What it does not have: textures, clusters of blocks, barriers in memory (mbarrier), reductions at
barriers, copies of tensors (cp.async.bulk), sparse products, recursion, addresses of parameters.
Such instructions are errors. Races are looked for in shared memory, between warps of a block; what
is atomic counts for none.
"""

from compiler.runtime.machines.ptx.launch import launch
from compiler.runtime.machines.ptx.memory import Memory
from compiler.runtime.machines.ptx.program import Function, Kernel, Param, PtxModule
from compiler.runtime.machines.ptx.syntax import parse
from compiler.runtime.machines.ptx.wave import Statistics

__all__ = ["Function", "Kernel", "Memory", "Param", "PtxModule", "Statistics", "launch", "parse"]
