"""Which C functions were under way when a signal such as a segmentation fault struck, or when one
called `exit`, as LLVM code.

Python's `faulthandler` knows the lines of Python. The handler here, which goes before it, writes
the C functions: `backtrace` (execinfo.h) finds the frames, `dladdr` (dlfcn.h) the names of those
in libraries. Neither is safe in every handler of signals by the letter; but the process is lost
anyway, and the next handler is put back first.
"""

from __future__ import annotations

import ctypes
import faulthandler
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
# After two functions here and what the system calls them by; of others there is where they go on.
_STRUCK = 3
#: A signal for which `faulthandler` writes the lines of Python; nobody else is likely to use it.
LINES = getattr(signal, "SIGRTMAX", 64) - 3

# struct sigaction of 64-bit Linux: the handler, 128 bytes of mask, flags, the restorer.
_CODE = """
%action = type { ptr, [128 x i8], i32, ptr }
%place = type { ptr, ptr, ptr, ptr }
@descriptor = internal global i32 -1
@before = internal global [65 x %action] zeroinitializer
@space = private constant [1 x i8] c" "
@newline = private constant [1 x i8] c"\\0A"

declare void @_exit(i32)
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

; Of the frames whose number is `exact` there is where they are, of others where they go on.
define internal void @frames(i32 %exact) noinline {
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
  %here = icmp eq i32 %k, %exact
  %address = select i1 %here, ptr %return, ptr %call
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
  ret void
}

define internal void @struck(i32 %signal, ptr %about, ptr %context) {
  %index = sext i32 %signal to i64
  %old = getelementptr [65 x %action], ptr @before, i64 0, i64 %index
  %back = call i32 @sigaction(i32 %signal, ptr %old, ptr null)
  call void @frames(i32 $STRUCK)
  ; To the handler before, once this one returns: `abort` would not ask it again.
  %again = call i32 @raise(i32 %signal)
  ret void
}

; What `exit` is to call: it does not go on to what was registered before.
define internal void @leave(i32 %code, ptr %unused) {
  call void @frames(i32 -1)
  %lines = call i32 @raise(i32 $LINES)
  call void @_exit(i32 %code)
  ret void
}

define ptr @$INSTALL(i32 %to, i32 %signal) {
  store i32 %to, ptr @descriptor
  %exits = icmp eq i32 %signal, 0
  br i1 %exits, label %end, label %strikes
strikes:
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
  br label %end
end:
  ret ptr @leave
}
"""


@functools.cache
def _installer() -> int:
    """Address of `void *(int descriptor, int signal)`, which installs the handler of a signal (0:
    none) and gives the address of `leave`; 0 on systems that this is not written for."""
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        return 0
    if not hasattr(ctypes.CDLL(None), "backtrace"):  # some C libraries have none
        return 0
    code = _CODE
    for name, value in {
        "FRAMES": _FRAMES,
        "STRUCK": _STRUCK,
        "LINES": LINES,
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
    for number in SIGNALS:
        _install(descriptor, number)


def leave_at_exit(descriptor: int) -> None:
    """Let C's `exit` end this process at once: neither Python nor what was registered before is
    asked. It first writes the lines of `write_frames`, and then, after a mark, those of Python.

    Elsewhere than on Linux, nothing happens.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "on_exit"):  # not in every C library
        return
    leave = _install(descriptor, 0)
    if leave:
        faulthandler.register(LINES, descriptor, all_threads=True)
    library.on_exit(
        ctypes.c_void_p(leave or ctypes.cast(library._exit, ctypes.c_void_p).value), None
    )


def _install(descriptor: int, number: int) -> int:
    address = _installer()
    if not address:
        return 0
    install = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_int)(address)
    found: int = install(descriptor, number)
    return found
