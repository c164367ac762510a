"""The server of devices: what programs do there, and what they cannot do to it."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from served import ONES, TOKEN, doubling, hostile, no_more_processes, processes, serving, works

import compiler
from compiler.errors import InputError, UnsupportedError
from compiler.exporting.export import relocatable
from compiler.target.registry import Target
from experiments.devices import executable, server, tokens
from experiments.devices.client import DeviceError


def test_programs_run_there() -> None:
    with serving() as s:
        device = s.device()
        exe = executable.build(doubling(), device)
        for n in (1, 5):
            np.testing.assert_array_equal(exe(np.arange(n, dtype=np.float32)), 2 * np.arange(n))
        assert exe(np.empty(0, np.float32)).shape == (0,)
        with pytest.raises(InputError, match="rank"):
            exe(np.ones((2, 2), np.float32))
        with pytest.raises(UnsupportedError, match="saved"):
            exe.save("x.exe")
        assert device.machine.cpu == "Test CPU"
        assert len(processes()) == 1
        device.close()
        assert no_more_processes()


ENDINGS = {
    "for (;;) ;": "it took more than 2 s and was stopped",
    "sleep(1000);": "it took more than 2 s and was stopped",
    "*(volatile int *)8 = 1;": "its process died of SIGSEGV",
    "abort();": "its process died of SIGABRT",
    "_exit(7);": "its process ended with code 7",
    "kill(getpid(), SIGKILL);": "its process died of SIGKILL",
    "if (fork() == 0) sleep(1000); _exit(0);": "its process ended with code 0",
    'for (int f = 3; f < 64; ++f) write(f, "dtyl nonsense, and more", 23); sleep(1000);': (
        "it wrote to what it answers by, and was stopped"
    ),
    "char big[4096]; memset(big, 'd', 4096); for (;;) for (int f = 3; f < 64; ++f) "
    "write(f, big, 4096);": "it wrote to what it answers by, and was stopped",
}
"""What a program does -> what the server says of it."""
_QUICK = "*(volatile int *)8 = 1;"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "body", [b if b == _QUICK else pytest.param(b, marks=pytest.mark.thorough) for b in ENDINGS]
)
def test_programs_that_do_not_answer(body: str) -> None:
    with serving(limit_s=2) as s:
        device = s.device()
        good, bad = hostile(""), hostile(body)
        device.run(good, [ONES])
        with pytest.raises(DeviceError, match=ENDINGS[body]):
            device.run(bad, [ONES])
        (found,) = device.run(good, [ONES])  # in the same session
        assert found.tolist() == [2, 2, 2]
        device.close()
    assert no_more_processes()


@pytest.mark.thorough
def test_a_library_that_crashes_as_it_is_loaded() -> None:
    with serving() as s:
        device = s.device()
        with pytest.raises(DeviceError, match="died of SIGSEGV"):
            device.run(hostile("", "*(volatile int *)8 = 1;"), [ONES])
        assert works(device)
        device.close()


@pytest.mark.thorough
def test_memory_is_limited() -> None:
    with serving(server.Rules(memory=256 << 20)) as s:
        device = s.device()
        greedy = "char *p = malloc(1l << 29); if (!p) _exit(9); memset(p, 1, 1l << 29);"
        with pytest.raises(DeviceError, match="ended with code 9"):
            device.run(hostile(greedy), [ONES])
        modest = "char *p = malloc(1l << 27); if (!p) _exit(9); memset(p, 1, 1l << 27); free(p);"
        assert device.run(hostile(modest), [ONES])[0].tolist() == [2, 2, 2]
        device.close()


@pytest.mark.thorough
def test_the_token_is_not_known_to_programs() -> None:
    leak = f'if (getenv("{tokens.TOKEN}") || getenv("{tokens.TOKEN_FILE}")) _exit(5);'
    with serving() as s:
        assert os.environ[tokens.TOKEN] == TOKEN
        device = s.device()
        assert device.run(hostile(leak), [ONES])[0].tolist() == [2, 2, 2]
        device.close()


@pytest.mark.thorough
def test_code_for_another_cpu() -> None:
    with serving() as s:
        device = s.device()
        here = Target.parse("llvm")
        other = replace(here, enabled=here.enabled | {"avx1024"})
        with pytest.raises(DeviceError, match=r"another CPU \(needs avx1024\)"):
            device.run(relocatable(doubling(), other).library(), [ONES])
        if here.triple.startswith("x86_64"):
            arm = relocatable(doubling(), Target.anywhere("llvm -mtriple=aarch64-linux"))
            with pytest.raises(DeviceError, match="the device cannot link what was sent"):
                device.run(arm.content, [ONES])
        with pytest.raises(DeviceError, match="neither a shared library nor an object file"):
            device.run(b"#!/bin/sh\ntouch /tmp/x\n", [ONES])
        plain = hostile("").replace(b"dtypelab library ", b"dtypelab librarX ")
        with pytest.raises(DeviceError, match=r"no library that compiler.export has written"):
            device.run(plain, [ONES])
        assert works(device)
        device.close()


@pytest.mark.thorough
def test_object_files_are_linked_there() -> None:
    with serving() as s:
        device = s.device()
        made = relocatable(doubling(), device.machine.target())
        assert device.run(made.content, [ONES])[0].tolist() == [2, 2, 2]
        device.close()


@pytest.mark.thorough
def test_targets_of_a_device() -> None:
    with serving() as s:
        device = s.device()
        if device.machine.triple.startswith("x86_64"):
            exe = executable.build(doubling(), device, "llvm -mcpu=x86-64-v2")
            assert exe.target.isa == "sse4.2"
            assert exe(ONES).tolist() == [2, 2, 2]
            few = replace(device.machine, enabled=("sse2",))
            with pytest.raises(UnsupportedError, match=r"needs avx.*which the device lacks"):
                few.target("llvm -mcpu=haswell")
            with pytest.raises(UnsupportedError, match="unlike the device"):
                few.target("llvm -mtriple=aarch64-linux")
        with pytest.raises(UnsupportedError, match="begins with llvm"):
            executable.build(doubling(), device, "c")
        with pytest.raises(UnsupportedError, match="one thread"):
            executable.build(doubling(), device, threads=2)
        device.close()


@pytest.mark.thorough
def test_compiled_bits_are_those_of_here() -> None:
    from experiments import zoo

    network = compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx")
    x = np.random.default_rng(0).random((7, 1, 28, 28), np.float32)
    with serving() as s:
        device = s.device()
        np.testing.assert_array_equal(
            executable.build(network, device)(x), compiler.build(network)(x)
        )
        device.close()
