"""Whether native code has rounded: the CPU's sticky flags of floating-point exceptions.

IEEE 754 lets every operation whose result is not exact raise a flag that stays until it is cleared.
On x86 these are bits of a thread's register MXCSR, which vector instructions set as well. Of other
architectures they are not read (see `Architecture.flags`).
"""

from __future__ import annotations

BEGIN, END = "watch_begin", "watch_end"
_RAISED = 0x39
"""Invalid operation, overflow, underflow, inexact. (Not: denormal operand, division by zero.)"""
_ALL = 0x3F


def watch_text() -> str:
    """LLVM text of `watch_begin()`, which clears the flags of this thread, and of
    `watch_end(ptr flag)`, which stores 1 (an int32) if any has been raised since."""
    return f"""declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @{BEGIN}() nounwind noinline {{
  %at = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %at)
  %old = load i32, ptr %at, align 4
  %clear = and i32 %old, {~_ALL}
  store i32 %clear, ptr %at, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret void
}}
define internal void @{END}(ptr %flag) nounwind noinline {{
  %at = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %at)
  %now = load i32, ptr %at, align 4
  %bits = and i32 %now, {_RAISED}
  %any = icmp ne i32 %bits, 0
  br i1 %any, label %raised, label %done
raised:
  store atomic i32 1, ptr %flag monotonic, align 4
  br label %done
done:
  ret void
}}"""
