"""Features that a process may use only after it has asked the operating system for them."""

from __future__ import annotations

import functools
import platform
import sys

TILES = "amx-"
"""How the names of features begin that work on the tile registers of x86."""
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18
"""Linux' numbers of the system call, of what it is to do, and of the part of a thread's state."""


@functools.cache
def tiles_granted() -> bool:
    """Whether this process may use x86's tile registers, which it asks for.

    Linux saves those 8 KiB of a thread only for processes that ask (Documentation/arch/x86/xstate);
    what it grants holds for all threads, and until another program takes the process over. It
    refuses where a thread has too small a stack for signals. Other systems are not asked.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return False
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return int(call(*map(ctypes.c_long, (_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)))) == 0
