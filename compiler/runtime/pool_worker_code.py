"""LLVM code of the thread pool: its state, and what workers do. `pool` says how it works and fills
in what begins with $; `pool_caller_code` goes after it."""

# Every variable that threads write has cache lines of its own: two, since prefetchers pair them.
# A semaphore has 64 bytes, twice what glibc and musl use.
WORKER_CODE = """
%line = type { i64, [120 x i8] }
%sleeper = type { i32, [124 x i8], [64 x i8], [64 x i8] } ; asleep, ., semaphore, .

@busy = internal global i32 0, align 128            ; whether a caller runs a job
@ready = internal global i32 0, align 4             ; whether this process has set the pool up
@started = internal global i64 0, align 8           ; workers
@number = internal global i64 0, align 128          ; 2 * job, odd while a job is written here:
@run = internal global ptr null, align 8
@block = internal global ptr null, align 8
@extent = internal global i64 0, align 8
@parts = internal global i64 0, align 8             ; participants, the caller included
@chunks = internal global i64 0, align 8
; job << 16 | first chunk of the part that is left << 8 | end of these
@claims = internal global [$PARTS x %line] zeroinitializer, align 128
@done = internal global [$PARTS x %line] zeroinitializer, align 128 ; job << 16 | chunks done
@caller_asleep = internal global i32 0, align 128
@caller_semaphore = internal global [64 x i8] zeroinitializer, align 64
@sleepers = internal global [$PARTS x %sleeper] zeroinitializer, align 128

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

; Chunk %c of the job.
define internal void @chunk(ptr %run, ptr %block, i64 %extent, i64 %chunks, i64 %c) nounwind {
entry:
  %c1 = add i64 %c, 1
  %low = mul i64 %extent, %c
  %high = mul i64 %extent, %c1
  %begin = udiv i64 %low, %chunks
  %end = udiv i64 %high, %chunks
  call void %run(ptr %block, i64 %begin, i64 %end)
  ret void
}

; The first chunk of part %p.
define internal i64 @first(i64 %p, i64 %parts, i64 %chunks) nounwind {
entry:
  %scaled = mul i64 %p, %chunks
  %first = udiv i64 %scaled, %parts
  ret i64 %first
}

; Take and do chunks of part %me (%from 0, %to 1) or of the others (%from 1, %to %parts) until none
; is left; returns how many.
define internal i64 @work(i64 %job, i64 %me, i64 %from, i64 %to, ptr %run, ptr %block, i64 %extent,
                          i64 %parts, i64 %chunks) nounwind {
entry:
  br label %part
part:
  %k = phi i64 [%from, %entry], [%k1, %next]        ; how many parts away
  %count = phi i64 [0, %entry], [%sum, %next]
  %q0 = add i64 %me, %k
  %wraps = icmp uge i64 %q0, %parts
  %q1 = sub i64 %q0, %parts
  %q = select i1 %wraps, i64 %q1, i64 %q0
  %q2 = add i64 %q, 1
  %low = call i64 @first(i64 %q, i64 %parts, i64 %chunks)
  %high = call i64 @first(i64 %q2, i64 %parts, i64 %chunks)
  %size = sub i64 %high, %low
  %claim = getelementptr [$PARTS x %line], ptr @claims, i64 0, i64 %q
  %own = icmp eq i64 %k, 0
  br label %look
look:
  %sum = phi i64 [%count, %part], [%sum1, %mine]
  %seen = load atomic i64, ptr %claim monotonic, align 8
  br label %check
check:
  %word = phi i64 [%seen, %look], [%actual, %take]
  %number = lshr i64 %word, 16
  %current = icmp eq i64 %number, %job
  %older = icmp ult i64 %number, %job
  %ours = or i1 %current, %older
  %b1 = lshr i64 %word, 8
  %b2 = and i64 %b1, 255
  %e2 = and i64 %word, 255
  %b = select i1 %current, i64 %b2, i64 0
  %e = select i1 %current, i64 %e2, i64 %size
  %left = icmp ult i64 %b, %e
  %go = and i1 %ours, %left
  br i1 %go, label %take, label %next
take:                                               ; an owner from the front, others from the end
  %after = add i64 %b, 1
  %before = sub i64 %e, 1
  %b3 = select i1 %own, i64 %after, i64 %b
  %e3 = select i1 %own, i64 %e, i64 %before
  %i = select i1 %own, i64 %b, i64 %before
  %w1 = shl i64 %job, 16
  %w2 = shl i64 %b3, 8
  %w3 = or i64 %w1, %w2
  %w4 = or i64 %w3, %e3
  %pair = cmpxchg ptr %claim, i64 %word, i64 %w4 seq_cst seq_cst
  %actual = extractvalue {i64, i1} %pair, 0
  %won = extractvalue {i64, i1} %pair, 1
  br i1 %won, label %mine, label %check
mine:
  %c = add i64 %low, %i
  call void @chunk(ptr %run, ptr %block, i64 %extent, i64 %chunks, i64 %c)
  %sum1 = add i64 %sum, 1
  br label %look
next:
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %to
  br i1 %more, label %part, label %out
out:
  ret i64 %sum
}

; Publish that worker %me has done %count chunks.
define internal void @tell(i64 %job, i64 %me, i64 %count) nounwind {
entry:
  %place = getelementptr [$PARTS x %line], ptr @done, i64 0, i64 %me
  %high = shl i64 %job, 16
  %word = or i64 %high, %count
  store atomic i64 %word, ptr %place seq_cst, align 8
  %sleeps = load atomic i32, ptr @caller_asleep seq_cst, align 4
  %down = icmp ne i32 %sleeps, 0
  br i1 %down, label %wake, label %out
wake:                                               ; it looks again, and sleeps on if others work
  %had = atomicrmw xchg ptr @caller_asleep, i32 0 seq_cst
  %mine = icmp ne i32 %had, 0
  br i1 %mine, label %post, label %out
post:
  call i32 @sem_post(ptr @caller_semaphore)
  br label %out
out:
  ret void
}

define internal ptr @worker(ptr %number) nounwind {
entry:
  %me = ptrtoint ptr %number to i64
  %asleep = getelementptr [$PARTS x %sleeper], ptr @sleepers, i64 0, i64 %me, i32 0
  %semaphore = getelementptr [$PARTS x %sleeper], ptr @sleepers, i64 0, i64 %me, i32 2
  br label %idle
idle:                                               ; %seen: the last number looked at
  %seen = phi i64 [0, %entry], [%seen, %look], [%n1, %grace], [%n1, %help], [%n1, %retell]
  %t0 = call i64 @now()
  %deadline = add i64 %t0, $SPIN
  br label %round
round:
  br label %spin
spin:
  %n = phi i32 [0, %round], [%n2, %pause]
  %w = load atomic i64, ptr @number monotonic, align 8
  %news = icmp ne i64 %w, %seen
  br i1 %news, label %look, label %pause
pause:
  $PAUSE
  %n2 = add i32 %n, 1
  %more = icmp ult i32 %n2, 64
  br i1 %more, label %spin, label %time
time:                                               ; let others have the processor
  call i32 @sched_yield()
  %t = call i64 @now()
  %late = icmp sgt i64 %t, %deadline
  br i1 %late, label %doze, label %round
doze:
  %known = phi i64 [%seen, %time], [%n1, %same]
  store atomic i32 1, ptr %asleep seq_cst, align 4
  %w2 = load atomic i64, ptr @number seq_cst, align 8 ; a job may have come before the flag was up
  %missed = icmp ne i64 %w2, %known
  br i1 %missed, label %rise, label %rest
rise:
  %was = atomicrmw xchg ptr %asleep, i32 0 seq_cst
  %alone = icmp ne i32 %was, 0
  br i1 %alone, label %look, label %rest            ; else a caller saw the flag: take its post
rest:
  call void @sleep(ptr %semaphore)
  br label %look
look:                                               ; the job is what it was while its number was
  %n1 = load atomic i64, ptr @number acquire, align 8
  %odd = and i64 %n1, 1
  %whole = icmp eq i64 %odd, 0
  br i1 %whole, label %read, label %idle
read:
  %run = load atomic ptr, ptr @run monotonic, align 8
  %block = load atomic ptr, ptr @block monotonic, align 8
  %extent = load atomic i64, ptr @extent monotonic, align 8
  %parts = load atomic i64, ptr @parts monotonic, align 8
  %chunks = load atomic i64, ptr @chunks monotonic, align 8
  fence acquire
  %n3 = load atomic i64, ptr @number monotonic, align 8
  %still = icmp eq i64 %n3, %n1
  br i1 %still, label %same, label %look
same:
  %asked = icmp ult i64 %me, %parts
  br i1 %asked, label %part, label %doze
part:
  %job = lshr i64 %n1, 1
  %count = call i64 @work(i64 %job, i64 %me, i64 0, i64 1, ptr %run, ptr %block, i64 %extent,
                          i64 %parts, i64 %chunks)
  %some = icmp ne i64 %count, 0
  br i1 %some, label %tell, label %grace
tell:
  call void @tell(i64 %job, i64 %me, i64 %count)
  br label %grace
grace:                                              ; let the others finish, or the next job begin
  %g = phi i32 [0, %part], [0, %tell], [%g1, %later]
  %n4 = load atomic i64, ptr @number monotonic, align 8
  %over = icmp ne i64 %n4, %n1
  br i1 %over, label %idle, label %later
later:
  $PAUSE
  %g1 = add i32 %g, 1
  %patient = icmp ult i32 %g1, $GRACE
  br i1 %patient, label %grace, label %help
help:
  %extra = call i64 @work(i64 %job, i64 %me, i64 1, i64 %parts, ptr %run, ptr %block, i64 %extent,
                          i64 %parts, i64 %chunks)
  %any = icmp ne i64 %extra, 0
  br i1 %any, label %retell, label %idle
retell:
  %all = add i64 %count, %extra
  call void @tell(i64 %job, i64 %me, i64 %all)
  br label %idle
}
"""
