"""LLVM code of the thread pool: what its callers do; it goes after `pool_worker_code`."""

CALLER_CODE = """
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
  %me = add i64 %have, 1
  %asleep = getelementptr [$PARTS x %sleeper], ptr @sleepers, i64 0, i64 %me, i32 0
  %semaphore = getelementptr [$PARTS x %sleeper], ptr @sleepers, i64 0, i64 %me, i32 2
  store atomic i32 0, ptr %asleep seq_cst, align 4
  %bad = call i32 @sem_init(ptr %semaphore, i32 0, i32 0)
  %usable = icmp eq i32 %bad, 0
  br i1 %usable, label %create, label %some
create:
  %self = inttoptr i64 %me to ptr
  %failed = call i32 @pthread_create(ptr %handle, ptr null, ptr @worker, ptr %self)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %count, label %some
count:
  %thread = load i64, ptr %handle, align 8
  call i32 @pthread_detach(i64 %thread)
  store i64 %me, ptr @started, align 8
  br label %check
all:
  ret i64 %wanted
some:
  ret i64 %have
}

; Post to the workers below %parts that sleep.
define internal void @rouse(i64 %parts) nounwind {
entry:
  br label %look
look:
  %k = phi i64 [1, %entry], [%k1, %next]
  %flag = getelementptr [$PARTS x %sleeper], ptr @sleepers, i64 0, i64 %k, i32 0
  %up = load atomic i32, ptr %flag monotonic, align 4
  %sleeps = icmp ne i32 %up, 0
  br i1 %sleeps, label %lower, label %next
lower:
  %was = atomicrmw xchg ptr %flag, i32 0 seq_cst
  %still = icmp ne i32 %was, 0
  br i1 %still, label %post, label %next
post:
  %semaphore = getelementptr [$PARTS x %sleeper], ptr @sleepers, i64 0, i64 %k, i32 2
  call i32 @sem_post(ptr %semaphore)
  br label %next
next:
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %parts
  br i1 %more, label %look, label %out
out:
  ret void
}

; How many chunks of the job the workers below %parts have done.
define internal i64 @finished(i64 %job, i64 %parts) nounwind {
entry:
  br label %look
look:
  %k = phi i64 [1, %entry], [%k1, %look]
  %sum = phi i64 [0, %entry], [%sum1, %look]
  %place = getelementptr [$PARTS x %line], ptr @done, i64 0, i64 %k
  %word = load atomic i64, ptr %place seq_cst, align 8
  %number = lshr i64 %word, 16
  %current = icmp eq i64 %number, %job
  %count = and i64 %word, 65535
  %part = select i1 %current, i64 %count, i64 0
  %sum1 = add i64 %sum, %part
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %parts
  br i1 %more, label %look, label %out
out:
  ret i64 %sum1
}

; Without a function to run: forget the workers, which a forked child does not have.
define void @$SYMBOL(ptr %run, ptr %block, i64 %extent, i64 %threads) nounwind {
entry:
  %nothing = icmp eq ptr %run, null
  br i1 %nothing, label %forget, label %enter
forget:
  store i64 0, ptr @started, align 8
  store i32 0, ptr @ready, align 4
  store i64 0, ptr @parts, align 8                  ; nobody is asked for a job that was under way
  %stale = load i64, ptr @number, align 8
  %stale1 = or i64 %stale, 1
  %even = add i64 %stale1, 1
  store i64 %even, ptr @number, align 8
  store atomic i32 0, ptr @busy seq_cst, align 4
  ret void
enter:
  %several = icmp sgt i64 %extent, 1
  %others = sub i64 %threads, 1
  %together = icmp sgt i64 %others, 0
  %worth = and i1 %several, %together
  br i1 %worth, label %lock, label %alone
lock:
  %try = cmpxchg ptr @busy, i32 0, i32 1 seq_cst seq_cst
  %free = extractvalue {i32, i1} %try, 1
  br i1 %free, label %own, label %alone
own:
  %set = load i32, ptr @ready, align 4
  %up = icmp ne i32 %set, 0
  br i1 %up, label %ready, label %prepare
prepare:                                            ; the first job of this process
  store atomic i32 0, ptr @caller_asleep seq_cst, align 4
  call i32 @sem_init(ptr @caller_semaphore, i32 0, i32 0)
  store i32 1, ptr @ready, align 4
  br label %ready
ready:
  %less = sub i64 %extent, 1                        ; no part may be empty
  %few = icmp ult i64 %less, %others
  %useful = select i1 %few, i64 %less, i64 %others
  %many = icmp ugt i64 %useful, $WORKERS
  %wanted = select i1 %many, i64 $WORKERS, i64 %useful
  %helpers = call i64 @grow(i64 %wanted)
  %none = icmp eq i64 %helpers, 0
  br i1 %none, label %unlock, label %publish
unlock:
  store atomic i32 0, ptr @busy seq_cst, align 4
  br label %alone
alone:
  call void %run(ptr %block, i64 0, i64 %extent)
  ret void
publish:
  %parts = add i64 %helpers, 1
  %most = mul i64 %parts, $CHUNKS
  %fine = icmp ult i64 %extent, %most
  %chunks = select i1 %fine, i64 %extent, i64 %most
  %old = load atomic i64, ptr @number monotonic, align 8
  %odd = add i64 %old, 1
  %number = add i64 %old, 2
  %job = lshr i64 %number, 1
  store atomic i64 %odd, ptr @number monotonic, align 8
  fence release
  store atomic ptr %run, ptr @run monotonic, align 8
  store atomic ptr %block, ptr @block monotonic, align 8
  store atomic i64 %extent, ptr @extent monotonic, align 8
  store atomic i64 %parts, ptr @parts monotonic, align 8
  store atomic i64 %chunks, ptr @chunks monotonic, align 8
  %own.end = call i64 @first(i64 1, i64 %parts, i64 %chunks)
  %c1 = shl i64 %job, 16
  %c2 = or i64 %c1, %own.end
  %c3 = or i64 %c2, 256                             ; the caller has taken its first chunk already
  store atomic i64 %c3, ptr @claims release, align 8
  store atomic i64 %number, ptr @number release, align 8
  br label %part
part:
  call void @rouse(i64 %parts)
  call void @chunk(ptr %run, ptr %block, i64 %extent, i64 %chunks, i64 0)
  fence seq_cst                                     ; see also flags that went up meanwhile
  call void @rouse(i64 %parts)
  %own0 = call i64 @work(i64 %job, i64 0, i64 0, i64 1, ptr %run, ptr %block, i64 %extent,
                         i64 %parts, i64 %chunks)
  %own1 = add i64 %own0, 1
  %left = sub i64 %chunks, %own1
  %last = sub i64 %job, 1
  %before = call i64 @finished(i64 %last, i64 %parts)
  %awake = icmp ne i64 %before, 0                   ; workers that came last time will come again
  br i1 %awake, label %grace, label %help
grace:
  %g = phi i32 [0, %part], [%g1, %later]
  %dg = call i64 @finished(i64 %job, i64 %parts)
  %early = icmp eq i64 %dg, %left
  br i1 %early, label %out, label %later
later:
  $PAUSE
  %g1 = add i32 %g, 1
  %patient = icmp ult i32 %g1, $GRACE
  br i1 %patient, label %grace, label %help
help:
  %extra = call i64 @work(i64 %job, i64 0, i64 1, i64 %parts, ptr %run, ptr %block, i64 %extent,
                          i64 %parts, i64 %chunks)
  %theirs = sub i64 %left, %extra
  %d0 = call i64 @finished(i64 %job, i64 %parts)
  %over = icmp eq i64 %d0, %theirs
  br i1 %over, label %out, label %watch
watch:
  %t0 = call i64 @now()
  %deadline = add i64 %t0, $CALLER
  br label %round
round:
  br label %spin
spin:
  %n = phi i32 [0, %round], [%n1, %pause]
  %d1 = call i64 @finished(i64 %job, i64 %parts)
  %all = icmp eq i64 %d1, %theirs
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
  %d2 = call i64 @finished(i64 %job, i64 %parts)
  %by_now = icmp eq i64 %d2, %theirs
  br i1 %by_now, label %rise, label %rest_now
rise:
  %had = atomicrmw xchg ptr @caller_asleep, i32 0 seq_cst
  %lone = icmp ne i32 %had, 0
  br i1 %lone, label %out, label %rest_now          ; else a worker saw the flag: take its post
rest_now:                                           ; a worker may post before the others are done
  call void @sleep(ptr @caller_semaphore)
  %d3 = call i64 @finished(i64 %job, i64 %parts)
  %finally = icmp eq i64 %d3, %theirs
  br i1 %finally, label %out, label %doze
out:
  store atomic i32 0, ptr @busy seq_cst, align 4
  ret void
}
"""
