"""Which C functions were under way when a signal such as a segmentation fault struck, as LLVM code.

Python's `faulthandler` knows the lines of Python. The handler here, which goes before it, writes
the C functions: `backtrace` (execinfo.h) finds the frames, `dladdr` (dlfcn.h) the names of those
in libraries. Neither is safe in every handler of signals by the letter; but the process is lost
anyway, and the next handler is put back first.
"""

from __future__ import annotations

import ctypes
import functools
import signal
import sys

from compiler.codegen.llvm import jit
from compiler.target.registry import Target

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")
)
_INSTALL = "dtypelab_crash_frames"
_FLAGS = 0x4 | 0x08000000  # SA_SIGINFO, SA_ONSTACK
_FRAMES = 48
_STRUCK = (
    2  # after the handler and what the system calls it by; of others there is where they go on
)

# struct sigaction of 64-bit Linux: the handler, 128 bytes of mask, flags, the restorer.
_CODE = """
%action = type { ptr, [128 x i8], i32, ptr }
%place = type { ptr, ptr, ptr, ptr }
@descriptor = internal global i32 -1
@before = internal global [65 x %action] zeroinitializer
@space = private constant [1 x i8] c" "
@newline = private constant [1 x i8] c"\\0A"

declare i32 @backtrace(ptr, i32)
declare i32 @dladdr(ptr, ptr)
declare i32 @raise(i32)
declare i32 @sigaction(i32, ptr, ptr)
declare i64 @strlen(ptr)
declare i64 @write(i32, ptr, i64)

define internal void @say(ptr %text) {
  %length = call i64 @strlen(ptr %text)
  %to = load i32, ptr @descriptor
  %n = call i64 @write(i32 %to, ptr %text, i64 %length)
  ret void
}

define internal void @struck(i32 %signal, ptr %about, ptr %context) {
  %index = sext i32 %signal to i64
  %old = getelementptr [65 x %action], ptr @before, i64 0, i64 %index
  %back = call i32 @sigaction(i32 %signal, ptr %old, ptr null)
  %frames = alloca [$FRAMES x ptr]
  %place = alloca %place
  %count = call i32 @backtrace(ptr %frames, i32 $FRAMES)
  br label %loop
loop:
  %k = phi i32 [ 0, %0 ], [ %next, %done ]
  %more = icmp slt i32 %k, %count
  br i1 %more, label %frame, label %end
frame:
  %at = getelementptr [$FRAMES x ptr], ptr %frames, i32 0, i32 %k
  %return = load ptr, ptr %at
  %call = getelementptr i8, ptr %return, i64 -1
  %exact = icmp eq i32 %k, $STRUCK
  %address = select i1 %exact, ptr %return, ptr %call
  %found = call i32 @dladdr(ptr %address, ptr %place)
  %known = icmp ne i32 %found, 0
  br i1 %known, label %library, label %done
library:
  %file = load ptr, ptr %place
  %named = getelementptr %place, ptr %place, i32 0, i32 2
  %name = load ptr, ptr %named
  %nameless = icmp eq ptr %name, null
  br i1 %nameless, label %done, label %write
write:
  %to = load i32, ptr @descriptor
  call void @say(ptr %name)
  %a = call i64 @write(i32 %to, ptr @space, i64 1)
  call void @say(ptr %file)
  %b = call i64 @write(i32 %to, ptr @newline, i64 1)
  br label %done
done:
  %next = add i32 %k, 1
  br label %loop
end:
  ; To the handler before, once this one returns: `abort` would not ask it again.
  %again = call i32 @raise(i32 %signal)
  ret void
}

define void @$INSTALL(i32 %to, i32 %signal) {
  store i32 %to, ptr @descriptor
  %first = alloca ptr
  %loaded = call i32 @backtrace(ptr %first, i32 1)
  %new = alloca %action
  store %action zeroinitializer, ptr %new
  store ptr @struck, ptr %new
  %flags = getelementptr %action, ptr %new, i32 0, i32 2
  store i32 $FLAGS, ptr %flags
  %index = sext i32 %signal to i64
  %old = getelementptr [65 x %action], ptr @before, i64 0, i64 %index
  %done = call i32 @sigaction(i32 %signal, ptr %new, ptr %old)
  ret void
}
"""


@functools.cache
def _installer() -> int:
    """Address of `void (int descriptor, int signal)`; 0 on systems that this is not written for."""
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        return 0
    if not hasattr(ctypes.CDLL(None), "backtrace"):  # some C libraries have none
        return 0
    code = _CODE
    for name, value in {
        "FRAMES": _FRAMES,
        "STRUCK": _STRUCK,
        "INSTALL": _INSTALL,
        "FLAGS": _FLAGS,
    }.items():
        code = code.replace(f"${name}", str(value))
    return jit.compile_text(code, _INSTALL, Target.parse("llvm"))


def prepare() -> None:
    """Compile what `write_frames` needs, so that children of this process need not."""
    _installer()


def write_frames(descriptor: int) -> None:
    """From now on, when one of SIGNALS strikes, write lines "FUNCTION FILE" to `descriptor`, the
    innermost first; then what would have happened happens."""
    address = _installer()
    if address:
        install = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int)(address)
        for number in SIGNALS:
            install(descriptor, number)
