"""The program that runs others' code under qemu-user, and the plugin that counts instructions: C
written here, compiled when first needed and kept on disk."""

from __future__ import annotations

import functools
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

from compiler.arithmetic import scalar_functions
from compiler.codegen import cache, linking
from compiler.codegen.c import system_compiler
from compiler.errors import LoweringError
from compiler.target.cpus import TRIPLES
from compiler.target.registry import Target

MAP, UNMAP, WRITE, READ, CALL, FUNCTIONS = range(1, 7)
"""Requests: each 3 int64, its number and two more, and what is written, after it.

MAP (address or 0, bytes) -> address, -1 if there is no room. UNMAP (address, bytes). WRITE
(address, bytes), and the bytes. READ (address, bytes) -> the bytes. CALL (address of a function
with 5 pointers as its parameters, or 0 for one that does nothing; address of these) -> what it
returns. FUNCTIONS -> the addresses of `functions`.
"""
REQUEST = struct.Struct("<3q")
COUNT = 0x444C
"""The system call at which the plugin writes how many instructions there were, as uint64, to the
file that its argument `fd` names; nobody else knows it."""
_VERSIONS = range(1, 9)
"""Numbers of qemu's interface of plugins, of which each qemu takes a few."""

_RUNNER = """#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

typedef int (*run_t)(void *, void *, void *, void *, void *);

/* What programs may call: they are linked with these addresses. */
%(declared)s
static char *const functions[] = {%(functions)s};

static int nothing(void *a, void *b, void *c, void *d, void *e) { return 0; }

static void take(void *to, int64_t bytes) {
  for (char *p = to; bytes > 0;) {
    ssize_t n = read(0, p, bytes > 1 << 20 ? 1 << 20 : (size_t)bytes);
    if (n <= 0) _exit(n ? 1 : 0);
    p += n;
    bytes -= n;
  }
}

static void give(const void *from, int64_t bytes) {
  for (const char *p = from; bytes > 0;) {
    ssize_t n = write(1, p, bytes > 1 << 20 ? 1 << 20 : (size_t)bytes);
    if (n <= 0) _exit(1);
    p += n;
    bytes -= n;
  }
}

int main(void) {
  run_t volatile empty = nothing;
  for (;;) {
    int64_t request[3], answer;
    take(request, sizeof request);
    void *at = (void *)(intptr_t)request[1];
    switch (request[0]) {
    case %(map)d: {
      int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED_NOREPLACE : 0);
      void *p = mmap(at, (size_t)request[2], PROT_READ | PROT_WRITE | PROT_EXEC, flags, -1, 0);
      answer = p == MAP_FAILED || (at && p != at) ? -1 : (int64_t)(intptr_t)p;
      give(&answer, sizeof answer);
      break;
    }
    case %(unmap)d:
      munmap(at, (size_t)request[2]);
      break;
    case %(write)d:
      take(at, request[2]);
      __builtin___clear_cache(at, (char *)at + request[2]);
      break;
    case %(read)d:
      give(at, request[2]);
      break;
    case %(call)d: {
      void **p = (void **)(intptr_t)request[2], *none[5] = {0};
      run_t run = at ? (run_t)at : empty;
      p = p ? p : none;
      syscall(%(count)d);
      answer = run(p[0], p[1], p[2], p[3], p[4]);
      syscall(%(count)d);
      give(&answer, sizeof answer);
      break;
    }
    case %(table)d:
      give(functions, sizeof functions);
      break;
    default:
      _exit(1);
    }
  }
}
"""

_PLUGIN = """#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))
PUBLIC int qemu_plugin_version = %(version)d;

extern void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t, void (*)(uint64_t, void *));
extern size_t qemu_plugin_tb_n_insns(const void *);
extern void qemu_plugin_register_vcpu_tb_exec_inline(void *, int, void *, uint64_t)
    __attribute__((weak));
extern void qemu_plugin_register_vcpu_tb_exec_cb(void *, void (*)(unsigned, void *), int, void *);
extern void qemu_plugin_register_vcpu_syscall_cb(uint64_t, void (*)(uint64_t, unsigned, int64_t,
    uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));

static uint64_t count;
static int fd;

static void add(unsigned cpu, void *n) { count += (uintptr_t)n; }

static void block(uint64_t id, void *tb) {
  size_t n = qemu_plugin_tb_n_insns(tb);
  if (qemu_plugin_register_vcpu_tb_exec_inline)
    qemu_plugin_register_vcpu_tb_exec_inline(tb, 0, &count, n);
  else
    qemu_plugin_register_vcpu_tb_exec_cb(tb, add, 0, (void *)(uintptr_t)n);
}

static void call(uint64_t id, unsigned cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c,
                 uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
  if (number == %(count)d && write(fd, &count, sizeof count) != sizeof count) _exit(1);
}

PUBLIC int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv) {
  if (argc != 1 || strncmp(argv[0], "fd=", 3)) return 1;
  fd = atoi(argv[0] + 3);
  qemu_plugin_register_vcpu_tb_trans_cb(id, block);
  qemu_plugin_register_vcpu_syscall_cb(id, call);
  return 0;
}
"""
_OF_COMPILERS = ("memcpy", "memmove", "memset", "memcmp", "fma", "fmaf", "__truncdfhf2")
"""Functions that LLVM calls without being told to."""


def functions() -> list[str]:
    """The functions of C that programs may call: those of mathematics, and those of compilers."""
    names = {name for f in scalar_functions.FUNCTIONS.values() if f.c for name in (f.c, f"{f.c}f")}
    return sorted(names | set(_OF_COMPILERS))


def runner_text() -> str:
    """C source of the program."""
    every = functions()
    return _RUNNER % {
        "declared": "\n".join(f'extern char f{k}[] __asm__("{n}");' for k, n in enumerate(every)),
        "functions": ", ".join(f"f{k}" for k in range(len(every))), "table": FUNCTIONS,
        "map": MAP, "unmap": UNMAP, "write": WRITE, "read": READ, "call": CALL, "count": COUNT,
    }  # fmt: skip


def plugin_text(version: int) -> str:
    """C source of the plugin, for a version of qemu's interface."""
    return _PLUGIN % {"version": version, "count": COUNT}


@dataclass(frozen=True)
class Runner:
    """The program for one architecture, in a file for as long as this process lives.

    Attributes:
        path: the program.
        folder: for what else must be in files.
    """

    path: Path
    folder: tempfile.TemporaryDirectory[str]


@functools.cache
def runner(triple: str) -> Runner:
    """The program for the machines of a triple, any of their CPUs.

    Raises:
        LoweringError: it cannot be compiled.
    """
    short = next(name for name, (full, _) in TRIPLES.items() if full == triple)
    target, text = Target.anywhere(f"llvm -mtriple={short}"), runner_text()
    name = cache.key(target, text)
    content = cache.load(name)
    if content is None:
        content = linking.executable([linking.object_of_c(text, target)], target, ("-O2",))
        cache.store(name, content)
    folder = tempfile.TemporaryDirectory(prefix="dtypelab-")
    path = Path(folder.name, "runner")
    path.write_bytes(content)
    path.chmod(0o700)
    return Runner(path, folder)


def plugins() -> list[bytes]:
    """The plugin for each version of the interface, the oldest first; none without a C compiler."""
    return [p for p in map(_plugin, _VERSIONS) if p]


@functools.cache
def _plugin(version: int) -> bytes:
    text, here = plugin_text(version), Target.parse("llvm")
    name = cache.key(here, text)
    content = cache.load(name)
    if content is None:
        try:
            content = system_compiler.shared_library(text)
        except LoweringError:
            return b""
        cache.store(name, content)
    return content
