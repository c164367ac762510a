"""The thread pool that kernels share: fork-join in about a microsecond, as LLVM code over libc.

A job is a range of iterations cut into chunks. Whoever takes part, the caller included, claims
chunks one by one from an atomic word that holds the job's number (upper half) and the next chunk
(lower half): a claim by a worker that was late for its job fails, because the number has changed.
The caller therefore never waits for a worker that has not started; it may do all chunks itself, and
then waits only for chunks that were claimed. Outputs of iterations are disjoint, so results do not
depend on who computes what.

Workers are created when a job first asks for them. An idle one watches the word for `SPIN_NS`,
yielding the processor now and then, and then sleeps on a semaphore; a caller posts only to workers
that sleep. One job runs at a time: a second caller does its work alone. A forked child has no
workers: the lock holds the process id of its owner, so that the child notices and starts over.
"""

from __future__ import annotations

import functools

from compiler.codegen import jit
from compiler.target import Target

SYMBOL = "dtypelab_parallel"
"""`void (void (ptr block, i64 begin, i64 end) *run, ptr block, i64 extent, i64 threads)`"""

MAX_WORKERS = 255
SPIN_NS = 200_000
"""How long an idle worker watches for the next job before it sleeps, in nanoseconds."""
CALLER_SPIN_NS = 50_000
"""How long a caller watches for the last chunks before it sleeps, in nanoseconds."""
CHUNKS_PER_THREAD = 4

# How a waiting loop tells the processor so, where LLVM has an intrinsic for it.
_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}


@functools.cache
def start() -> int:
    """Make the pool callable by generated code; returns the address of `dtypelab_parallel`."""
    target = Target.parse("llvm")
    return jit.compile_text(pool_text(target.triple), SYMBOL, target)


def pool_text(triple: str) -> str:
    """The LLVM code of the pool."""
    declare, pause = _PAUSE.get(triple.partition("-")[0], ("", ""))
    code = _CODE
    for name, value in {
        "SYMBOL": SYMBOL,
        "WORKERS": MAX_WORKERS,
        "SPIN": SPIN_NS,
        "CALLER": CALLER_SPIN_NS,
        "CHUNKS": CHUNKS_PER_THREAD,
        "PAUSE": pause,
    }.items():
        code = code.replace(f"${name}", str(value))
    return declare + code


# Every variable that threads write has a cache line (or two: prefetchers pair them) of its own.
# A semaphore has 64 bytes, twice what glibc and musl use.
_CODE = """
%worker = type { i64, i32, i32, [112 x i8], [64 x i8], [64 x i8] } ; number, asleep, ., ., semaphore

@lock = internal global i32 0, align 128            ; process id of the caller that runs a job, or 0
@claim = internal global i64 0, align 128           ; job number << 32 | next chunk
@done = internal global i64 0, align 128            ; chunks finished
@caller_asleep = internal global i32 0, align 128
@caller_semaphore = internal global [64 x i8] zeroinitializer, align 64
@run = internal global ptr null, align 128          ; the job; written while nothing can be claimed
@block = internal global ptr null, align 8
@extent = internal global i64 0, align 8
@chunks = internal global i64 0, align 8
@limit = internal global i64 0, align 8             ; workers from this number on have no part
@process = internal global i32 0, align 128         ; the process that the workers belong to
@started = internal global i64 0, align 8
@workers = internal global [$WORKERS x %worker] zeroinitializer, align 128

declare i32 @getpid()
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @sem_init(ptr, i32, i32)
declare i32 @sem_wait(ptr)
declare i32 @sem_post(ptr)

define internal i64 @now() nounwind {
entry:
  %time = alloca [2 x i64], align 8
  call i32 @clock_gettime(i32 1, ptr %time)
  %s = load i64, ptr %time, align 8
  %p = getelementptr i8, ptr %time, i64 8
  %ns = load i64, ptr %p, align 8
  %scaled = mul i64 %s, 1000000000
  %sum = add i64 %scaled, %ns
  ret i64 %sum
}

; Sleep until a post arrives; signals interrupt the wait.
define internal void @sleep(ptr %semaphore) nounwind {
entry:
  br label %wait
wait:
  %failed = call i32 @sem_wait(ptr %semaphore)
  %again = icmp ne i32 %failed, 0
  br i1 %again, label %wait, label %out
out:
  ret void
}

; Claim and run chunks of job %job until none is left; wake the caller after the last one.
define internal void @work(i64 %job, ptr %run, ptr %block, i64 %extent, i64 %chunks) nounwind {
entry:
  br label %look
look:
  %first = load atomic i64, ptr @claim seq_cst, align 8
  br label %check
check:
  %word = phi i64 [%first, %look], [%actual, %take]
  %number = lshr i64 %word, 32
  %current = icmp eq i64 %number, %job
  %i = and i64 %word, 4294967295
  %left = icmp ult i64 %i, %chunks
  %go = and i1 %current, %left
  br i1 %go, label %take, label %out
take:
  %next = add i64 %word, 1
  %pair = cmpxchg ptr @claim, i64 %word, i64 %next seq_cst seq_cst
  %actual = extractvalue {i64, i1} %pair, 0
  %won = extractvalue {i64, i1} %pair, 1
  br i1 %won, label %mine, label %check
mine:
  %i1 = add i64 %i, 1
  %low = mul i64 %extent, %i
  %high = mul i64 %extent, %i1
  %begin = udiv i64 %low, %chunks
  %end = udiv i64 %high, %chunks
  call void %run(ptr %block, i64 %begin, i64 %end)
  %before = atomicrmw add ptr @done, i64 1 seq_cst
  %finished = add i64 %before, 1
  %last = icmp eq i64 %finished, %chunks
  br i1 %last, label %wake, label %look
wake:
  %asleep = atomicrmw xchg ptr @caller_asleep, i32 0 seq_cst
  %post = icmp ne i32 %asleep, 0
  br i1 %post, label %call, label %out
call:
  call i32 @sem_post(ptr @caller_semaphore)
  br label %out
out:
  ret void
}

define internal ptr @worker(ptr %self) nounwind {
entry:
  %me = load i64, ptr %self, align 8
  %asleep = getelementptr %worker, ptr %self, i64 0, i32 1
  %semaphore = getelementptr %worker, ptr %self, i64 0, i32 4
  br label %idle
idle:                                               ; %seen: the last job looked at
  %seen = phi i64 [0, %entry], [%job, %part]
  %t0 = call i64 @now()
  %deadline = add i64 %t0, $SPIN
  br label %round
round:
  br label %spin
spin:
  %n = phi i32 [0, %round], [%n1, %pause]
  %w = load atomic i64, ptr @claim seq_cst, align 8
  %j = lshr i64 %w, 32
  %news = icmp ne i64 %j, %seen
  br i1 %news, label %look, label %pause
pause:
  $PAUSE
  %n1 = add i32 %n, 1
  %more = icmp ult i32 %n1, 64
  br i1 %more, label %spin, label %time
time:                                               ; let others have the processor
  call i32 @sched_yield()
  %t = call i64 @now()
  %late = icmp sgt i64 %t, %deadline
  br i1 %late, label %doze, label %round
doze:
  %known = phi i64 [%seen, %time], [%job, %look]
  store atomic i32 1, ptr %asleep seq_cst, align 4
  %w2 = load atomic i64, ptr @claim seq_cst, align 8 ; a job may have come before the flag was up
  %j2 = lshr i64 %w2, 32
  %missed = icmp ne i64 %j2, %known
  br i1 %missed, label %rise, label %rest
rise:
  %was = atomicrmw xchg ptr %asleep, i32 0 seq_cst
  %alone = icmp ne i32 %was, 0
  br i1 %alone, label %look, label %rest            ; else a caller saw the flag: take its post
rest:
  call void @sleep(ptr %semaphore)
  br label %look
look:
  %w3 = load atomic i64, ptr @claim seq_cst, align 8
  %job = lshr i64 %w3, 32
  %some = load atomic i64, ptr @limit monotonic, align 8
  %asked = icmp ult i64 %me, %some
  br i1 %asked, label %part, label %doze
part:                                               ; stale values do no harm: no claim succeeds
  %run = load atomic ptr, ptr @run monotonic, align 8
  %block = load atomic ptr, ptr @block monotonic, align 8
  %extent = load atomic i64, ptr @extent monotonic, align 8
  %chunks = load atomic i64, ptr @chunks monotonic, align 8
  call void @work(i64 %job, ptr %run, ptr %block, i64 %extent, i64 %chunks)
  br label %idle
}

; Have at least %wanted workers, or as many as the system allows; returns how many may take part.
define internal i64 @grow(i64 %wanted) nounwind {
entry:
  %handle = alloca i64, align 8
  br label %check
check:
  %have = load i64, ptr @started, align 8
  %enough = icmp uge i64 %have, %wanted
  br i1 %enough, label %all, label %prepare
prepare:
  %self = getelementptr [$WORKERS x %worker], ptr @workers, i64 0, i64 %have
  %asleep = getelementptr %worker, ptr %self, i64 0, i32 1
  %semaphore = getelementptr %worker, ptr %self, i64 0, i32 4
  store i64 %have, ptr %self, align 8
  store atomic i32 0, ptr %asleep seq_cst, align 4
  %bad = call i32 @sem_init(ptr %semaphore, i32 0, i32 0)
  %usable = icmp eq i32 %bad, 0
  br i1 %usable, label %create, label %some
create:
  %failed = call i32 @pthread_create(ptr %handle, ptr null, ptr @worker, ptr %self)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %count, label %some
count:
  %thread = load i64, ptr %handle, align 8
  call i32 @pthread_detach(i64 %thread)
  %now = add i64 %have, 1
  store i64 %now, ptr @started, align 8
  br label %check
all:
  ret i64 %wanted
some:
  ret i64 %have
}

define void @$SYMBOL(ptr %run, ptr %block, i64 %extent, i64 %threads) nounwind {
entry:
  %several = icmp sgt i64 %extent, 1
  br i1 %several, label %start, label %alone
start:
  %pid = call i32 @getpid()
  %try = cmpxchg ptr @lock, i32 0, i32 %pid seq_cst seq_cst
  %owner = extractvalue {i32, i1} %try, 0
  %free = extractvalue {i32, i1} %try, 1
  br i1 %free, label %own, label %taken
taken:
  %ours = icmp eq i32 %owner, %pid
  br i1 %ours, label %alone, label %steal
steal:                                              ; held in the parent when this process forked
  %try2 = cmpxchg ptr @lock, i32 %owner, i32 %pid seq_cst seq_cst
  %stolen = extractvalue {i32, i1} %try2, 1
  br i1 %stolen, label %own, label %alone
own:
  %process = load i32, ptr @process, align 4
  %same = icmp eq i32 %process, %pid
  br i1 %same, label %ready, label %reset
reset:                                              ; the first job of this process
  store i64 0, ptr @started, align 8
  store atomic i32 0, ptr @caller_asleep seq_cst, align 4
  call i32 @sem_init(ptr @caller_semaphore, i32 0, i32 0)
  store i32 %pid, ptr @process, align 4
  br label %ready
ready:
  %others = sub i64 %threads, 1
  %many = icmp ugt i64 %others, $WORKERS
  %wanted = select i1 %many, i64 $WORKERS, i64 %others
  %helpers = call i64 @grow(i64 %wanted)
  %none = icmp eq i64 %helpers, 0
  br i1 %none, label %unlock, label %publish
unlock:
  store atomic i32 0, ptr @lock seq_cst, align 4
  br label %alone
alone:
  call void %run(ptr %block, i64 0, i64 %extent)
  ret void
publish:
  %parts = mul i64 %threads, $CHUNKS
  %fine = icmp ult i64 %extent, %parts
  %chunks = select i1 %fine, i64 %extent, i64 %parts
  store atomic ptr %run, ptr @run monotonic, align 8
  store atomic ptr %block, ptr @block monotonic, align 8
  store atomic i64 %extent, ptr @extent monotonic, align 8
  store atomic i64 %chunks, ptr @chunks monotonic, align 8
  store atomic i64 %helpers, ptr @limit monotonic, align 8
  store atomic i64 0, ptr @done seq_cst, align 8
  %old = load atomic i64, ptr @claim monotonic, align 8
  %number = lshr i64 %old, 32
  %bump = add i64 %number, 1
  %word = shl i64 %bump, 32
  %job = lshr i64 %word, 32
  store atomic i64 %word, ptr @claim seq_cst, align 8
  br label %wake
wake:
  %k = phi i64 [0, %publish], [%k1, %woken]
  %flag = getelementptr [$WORKERS x %worker], ptr @workers, i64 0, i64 %k, i32 1
  %up = load atomic i32, ptr %flag seq_cst, align 4
  %sleeps = icmp ne i32 %up, 0
  br i1 %sleeps, label %lower, label %woken
lower:
  %was = atomicrmw xchg ptr %flag, i32 0 seq_cst
  %still = icmp ne i32 %was, 0
  br i1 %still, label %post, label %woken
post:
  %semaphore = getelementptr [$WORKERS x %worker], ptr @workers, i64 0, i64 %k, i32 4
  call i32 @sem_post(ptr %semaphore)
  br label %woken
woken:
  %k1 = add i64 %k, 1
  %next = icmp ult i64 %k1, %helpers
  br i1 %next, label %wake, label %part
part:
  call void @work(i64 %job, ptr %run, ptr %block, i64 %extent, i64 %chunks)
  %d0 = load atomic i64, ptr @done seq_cst, align 8
  %over = icmp eq i64 %d0, %chunks
  br i1 %over, label %out, label %wait
wait:
  %t0 = call i64 @now()
  %deadline = add i64 %t0, $CALLER
  br label %round
round:
  br label %spin
spin:
  %n = phi i32 [0, %round], [%n1, %pause]
  %d1 = load atomic i64, ptr @done seq_cst, align 8
  %all = icmp eq i64 %d1, %chunks
  br i1 %all, label %out, label %pause
pause:
  $PAUSE
  %n1 = add i32 %n, 1
  %more = icmp ult i32 %n1, 64
  br i1 %more, label %spin, label %time
time:                                               ; a worker may need this very processor
  call i32 @sched_yield()
  %t = call i64 @now()
  %late = icmp sgt i64 %t, %deadline
  br i1 %late, label %doze, label %round
doze:
  store atomic i32 1, ptr @caller_asleep seq_cst, align 4
  %d2 = load atomic i64, ptr @done seq_cst, align 8
  %by_now = icmp eq i64 %d2, %chunks
  br i1 %by_now, label %rise, label %rest
rise:
  %had = atomicrmw xchg ptr @caller_asleep, i32 0 seq_cst
  %lone = icmp ne i32 %had, 0
  br i1 %lone, label %out, label %rest              ; else a worker saw the flag: take its post
rest:                                               ; a late post of the job before may end this
  call void @sleep(ptr @caller_semaphore)
  %d3 = load atomic i64, ptr @done seq_cst, align 8
  %finally = icmp eq i64 %d3, %chunks
  br i1 %finally, label %out, label %doze
out:
  store atomic i32 0, ptr @lock seq_cst, align 4
  ret void
}
"""
