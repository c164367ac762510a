"""A C program that calls an exported network over memory of exactly the bytes that its header
names: sanitizers, valgrind or pages that cannot be touched find what goes beyond.

Modes of memory: `exact` takes it from malloc; `behind` has a page that cannot be touched behind
every piece, `before` before it, and pages that cannot be written hold inputs and weights.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from compiler.codegen.c import system_compiler
from compiler.codegen.standalone import ALIGN
from compiler.types.dtypes import Array

FLAGS = ("-std=c11", "-g", "-ffp-contract=off", "-fno-strict-aliasing", "-pthread")
UNDEFINED = "-fsanitize=address,undefined,float-cast-overflow"
THREADS = "-fsanitize=thread"

PROGRAM = r"""#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int64_t arena_bytes(const int64_t *dims);
int called(const void *const *, void *const *, const int64_t *, const void *weights, void *arena);
typedef struct { unsigned char *at; size_t bytes, slack, page; void *block; } Memory;
enum { MOST = 64 };
static int64_t inputs, outputs, sizes, weights, calls;
static char mode; /* e: exact; g: a page behind; b: a page before */
static int64_t dims[MOST], in_bytes[MOST], in_width[MOST], out_bytes[MOST], out_width[MOST];
static Memory given[MOST], constants;
static unsigned char *wanted[MOST];

static void stop(const char *why) { fprintf(stderr, "%s\n", why); exit(9); }

static Memory memory(int64_t bytes, int64_t align) {
  Memory m = {0, (size_t)bytes, 0, 0, 0};
  if (mode == 'e') {
    size_t width = (size_t)align < sizeof(void *) ? sizeof(void *) : (size_t)align;
    if (posix_memalign(&m.block, width, bytes ? (size_t)bytes : 1)) stop("no memory");
    m.at = m.block;
    return m;
  }
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const size_t whole = ((size_t)bytes + page - 1) / page * page;
  unsigned char *all = mmap(0, whole + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) stop("no memory");
  if (whole && mprotect(all + page, whole, PROT_READ | PROT_WRITE)) stop("no memory");
  memset(all + page, 0xff, whole);
  const size_t rounded = ((size_t)bytes + (size_t)align - 1) / (size_t)align * (size_t)align;
  m.slack = mode == 'g' ? rounded - (size_t)bytes : whole - (size_t)bytes;
  m.at = all + page + (mode == 'g' ? whole - rounded : 0);
  m.block = all + page;
  m.page = whole;
  memset(m.at + bytes, 0xa5, m.slack);
  return m;
}

static void sealed(Memory m) {
  if (m.page && mprotect(m.block, m.page, PROT_READ)) stop("pages cannot be sealed");
}

static int untouched(Memory m) {
  for (size_t k = 0; k < m.slack; ++k)
    if (m.at[m.bytes + k] != 0xa5) return 0;
  return 1;
}

static void given_back(Memory m) {
  if (mode == 'e') free(m.block);
}

static void *work(void *unused) {
  (void)unused;
  const void *in[MOST] = {0};
  void *out[MOST] = {0};
  Memory made[MOST], arena = memory(arena_bytes(dims), 64);
  for (int64_t k = 0; k < inputs; ++k) in[k] = given[k].at;
  for (int64_t k = 0; k < outputs; ++k) {
    made[k] = memory(out_bytes[k], out_width[k]);
    out[k] = made[k].at;
  }
  size_t wrong = 0;
  for (int64_t call = 0; call < calls; ++call) {
    for (int64_t k = 0; k < outputs; ++k) memset(out[k], 0xff, (size_t)out_bytes[k]);
    wrong += called(in, out, dims, constants.at, arena.at) != 0;
    for (int64_t k = 0; k < outputs; ++k)
      wrong += memcmp(out[k], wanted[k], (size_t)out_bytes[k]) != 0 || !untouched(made[k]);
    wrong += !untouched(arena);
  }
  for (int64_t k = 0; k < outputs; ++k) given_back(made[k]);
  given_back(arena);
  return (void *)wrong;
}

static void take(FILE *file, void *at, size_t bytes) {
  if (bytes && fread(at, bytes, 1, file) != 1) stop("the file of data is too short");
}

int main(int argc, char **argv) { /* DATA MODE CALLS THREADS */
  if (argc != 5) stop("DATA MODE CALLS THREADS");
  FILE *file = fopen(argv[1], "rb");
  mode = argv[2][0];
  calls = atoll(argv[3]);
  const int64_t threads = atoll(argv[4]);
  int64_t head[4];
  if (!file) stop("no data");
  take(file, head, sizeof head);
  inputs = head[0], outputs = head[1], sizes = head[2], weights = head[3];
  if (inputs > MOST || outputs > MOST || sizes > MOST || threads > MOST) stop("too many");
  take(file, dims, (size_t)sizes * 8);
  take(file, in_bytes, (size_t)inputs * 8), take(file, in_width, (size_t)inputs * 8);
  take(file, out_bytes, (size_t)outputs * 8), take(file, out_width, (size_t)outputs * 8);
  for (int64_t k = 0; k < inputs; ++k) {
    given[k] = memory(in_bytes[k], in_width[k]);
    take(file, given[k].at, (size_t)in_bytes[k]), sealed(given[k]);
  }
  for (int64_t k = 0; k < outputs; ++k) {
    if (!(wanted[k] = malloc((size_t)out_bytes[k] + 1))) stop("no memory");
    take(file, wanted[k], (size_t)out_bytes[k]);
  }
  if (weights >= 0) {
    constants = memory(weights, 64);
    take(file, constants.at, (size_t)weights), sealed(constants);
  }
  fclose(file);
  pthread_t started[MOST];
  size_t wrong = 0;
  for (int64_t k = 0; k < threads; ++k)
    if (pthread_create(&started[k], 0, work, 0)) stop("no thread");
  for (int64_t k = 0; k < threads; ++k) {
    void *found;
    pthread_join(started[k], &found);
    wrong += (size_t)found;
  }
  for (int64_t k = 0; k < inputs; ++k) given_back(given[k]);
  for (int64_t k = 0; k < outputs; ++k) free(wanted[k]);
  if (weights >= 0) given_back(constants);
  if (wrong) printf("%zu wrong\n", wrong);
  return wrong != 0;
}
"""


@dataclass(frozen=True)
class Calls:
    """A program that calls a network.

    Attributes:
        path: of it.
        data: its inputs, and the outputs that it must give.
    """

    path: Path
    data: Path

    def run(
        self, mode: str = "exact", calls: int = 1, threads: int = 1, before: Sequence[str] = ()
    ) -> None:
        """Call it so often in each of so many threads; nothing may be said, nothing be wrong.

        Args:
            before: words that begin the call of the program.
        """
        letter = {"exact": "e", "behind": "g", "before": "b"}[mode]
        words = [*before, str(self.path), str(self.data), letter, str(calls), str(threads)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        said = (done.stdout + done.stderr)[:3000]
        assert (done.returncode, said) == (0, ""), f"{mode}, {calls} calls: {said}"


def program(
    folder: Path,
    inputs: Sequence[Array],
    wanted: Sequence[Array],
    dims: Mapping[str, int] | None = None,
    flags: Sequence[str] = ("-O1",),
) -> Calls:
    """The program for an exported network called `net`; the test is skipped where the compiler has
    no such sanitizer.

    Args:
        folder: that it was exported to, which holds the source or else an object file.
        dims: values of sizes that are open, in the order of the header.
        flags: of the compiler, for all files.
    """
    sizes = dict(dims or {})
    arena = f"net_arena_bytes({', '.join(f'dims[{k}]' for k in range(len(sizes)))})"
    file = folder / "net_weights.bin"
    weights = file.read_bytes() if file.exists() else None
    given = "" if weights is None else "weights, "
    (folder / "calls.c").write_text(PROGRAM)
    (folder / "arena.c").write_text(
        f'#include "net.h"\n#if NET_ALIGN != {ALIGN}\n#error another alignment\n#endif\n'
        "int64_t arena_bytes(const int64_t *dims);\n"
        "int called(const void *const *, void *const *, const int64_t *, const void *, void *);\n"
        "int64_t arena_bytes(const int64_t *dims) { (void)dims; return "
        f"{arena if sizes else 'NET_ARENA_BYTES'}; }}\n"
        "int called(const void *const *inputs, void *const *outputs, const int64_t *dims, "
        "const void *weights, void *arena) {\n"
        f"  (void)weights;\n  return net_run(inputs, outputs, dims, {given}arena);\n}}\n"
    )
    head = [len(inputs), len(wanted), len(sizes), -1 if weights is None else len(weights)]
    numbers = [*head, *sizes.values()]
    for arrays in (inputs, wanted):
        numbers += [*(a.nbytes for a in arrays), *(a.itemsize for a in arrays)]
    content = [np.asarray(numbers, np.int64).tobytes(), *(a.tobytes() for a in (*inputs, *wanted))]
    (folder / "calls.bin").write_bytes(b"".join([*content, weights or b""]))
    code = folder / ("net.c" if (folder / "net.c").exists() else "net.o")
    files = [str(folder / "calls.c"), str(folder / "arena.c"), str(code)]
    out = folder / "calls"
    words = [*system_compiler.command(), *FLAGS, *flags, "-o", str(out), *files, "-lm"]
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    if built.returncode and any("sanitize" in f for f in flags) and "cannot find" in built.stderr:
        pytest.skip(f"the compiler has no sanitizers: {built.stderr.splitlines()[0]}")
    assert built.returncode == 0, built.stderr[:3000]
    return Calls(out, folder / "calls.bin")
