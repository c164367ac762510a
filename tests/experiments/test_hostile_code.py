"""Code of a user that crashes, hangs, exits, allocates, prints or meddles: each is a row, the
others are what they are without it, and nothing of it stays."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import experiments
from compiler.errors import ConfigError
from experiments.cli.main import run_command
from experiments.spec.specification import load_spec
from experiments.user_code import isolation
from experiments.user_code.keeper import children

#: What a metric does before it answers -> its status, and what its row says (None: nothing).
KINDS: dict[str, tuple[str, str, str]] = {
    "segfault": (
        "ctypes.string_at(0)",
        "error",
        r"segmentation fault \(SIGSEGV\), in does_segfault.py",
    ),
    "abort": ("os.abort()", "error", r"aborted \(SIGABRT\), in does_abort.py line"),
    "exit": (
        "ctypes.CDLL(None).exit(0)",
        "error",
        r"ended the process with exit code 0, in does_exit.py line \d+$",
    ),
    "exit_at_once": ("os._exit(3)", "error", "ended the process with exit code 3$"),
    "system_exit": ("sys.exit(0)", "error", "SystemExit: 0"),
    "ctrl_c": ("raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
    "real_time": ("os.kill(os.getpid(), 40)", "error", "died of signal 40"),
    "temporary": (
        "[(f := tempfile.mkstemp()[1]), os.mkdir(f + '-'), os.symlink('/', f + '-/l'),"
        " os.chmod(f + '-', 0), os.system('mktemp -d')]",
        "ok",
        "",
    ),
    "loop": ("all(True for _ in iter(int, 1))", "timeout", "took more than 10 s"),
    "sleep": ("time.sleep(1e6)", "timeout", "took more than 10 s"),
    "memory": ("[bytearray(1 << 27) for _ in range(64)]", "error", "out of memory"),
    "array": ("np.zeros(1 << 36)", "error", "out of memory: Unable to allocate"),
    "closes_outputs": ("os.closerange(0, 3)", "ok", ""),
    "closes_all": ("os.closerange(0, 400)", "error", "ended the process|closed its connection"),
    "prints": ("print('x' * 4_000_000)", "ok", ""),
    "threads": ("threading.Thread(target=time.sleep, args=(1e6,)).start()", "ok", ""),
    "children": ("left(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)", "ok", ""),
    "fork": ("left(os.fork())", "ok", ""),
    "folder": ("os.chdir('/')", "ok", ""),
    "environment": ("os.environ.clear()", "ok", ""),
    "numpy": ("setattr(np, 'mean', lambda *_: 7)", "error", "code of the user replaced numpy.mean"),
    "signals": ("signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())", "ok", ""),
    "recursion": ("(f := lambda n: f(n + 1))(0)", "error", "RecursionError"),
    "exception": ("raise Silent", "error", r"Silent: \(its text cannot be had\)"),
    "keeper": ("(os.kill(os.getppid(), 9), time.sleep(1e6))", "error", "closed its connection"),
    "group": ("os.killpg(0, 15)", "error", "died of SIGTERM|closed its connection"),
}
SAMPLE = ("segfault", "exit", "ctrl_c", "memory", "children", "numpy", "temporary")

METRIC = """
import ctypes, os, signal, subprocess, sys, tempfile, threading, time
import numpy as np

class Silent(Exception):
    def __str__(self): raise ValueError
    def __reduce__(self): raise TypeError

def left(pid):
    pid and open(__file__ + ".left", "a").write(f"{{pid}} ")

def {name}(outputs, labels):
    {action}
    return outputs.max(axis=1)
"""


def write(folder: Path, name: str, action: str) -> str:
    path = folder / f"does_{name}.py"
    path.write_text(METRIC.format(name=name, action=action))
    return f"{path}:{name}"


def spec(metrics: list[str], **more: Any) -> dict[str, Any]:
    """A cell for every metric."""
    return {
        "models": [{"model": "mnist_mlp", "metric": metric} for metric in metrics],
        "schemes": ["float32"],
        "n_eval": 20,
        "latency": {"runs": 0},
        **more,
    }


@pytest.fixture(autouse=True)
def nothing_stays(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """No process, no folder, no file that was open, no temporary file."""
    temporaries = tmp_path_factory.mktemp("temporaries")
    monkeypatch.setenv("TMPDIR", str(temporaries))
    monkeypatch.setattr(tempfile, "tempdir", None)
    before = set(children(os.getpid())), os.getcwd(), len(os.listdir("/proc/self/fd"))
    yield
    after = set(children(os.getpid())), os.getcwd(), len(os.listdir("/proc/self/fd"))
    assert after == before
    assert list(temporaries.iterdir()) == []
    for file in tmp_path.glob("*.left"):
        for pid in map(int, file.read_text().split()):
            assert not Path(f"/proc/{pid}").exists()


def sweep_kinds(folder: Path, names: tuple[str, ...]) -> None:
    good = [write(folder, f"good{k}", "pass") for k in range(2)]
    metrics = [good[0], *(write(folder, name, KINDS[name][0]) for name in names), good[1]]
    table = experiments.sweep(spec(metrics, timeout_s=10, memory_gib=0.25), folder / "r.csv")
    assert table["status"].tolist() == ["ok", *(KINDS[name][1] for name in names), "ok"]
    for name, error in zip(names, table["error"][1:-1], strict=True):
        _, status, says = KINDS[name]
        if status == "ok":
            assert error == "", name
            continue
        where = "" if name == "numpy" else rf"metric {name} \({name} of does_{name}.py\): "
        pattern = pytest.RaisesExc(ConfigError, match=f"^{where}({says})")
        assert pattern.matches(ConfigError(error)), (name, error)
    fine = table[table["status"] == "ok"]["metric"]
    assert (fine == fine.iloc[0]).all()


@pytest.mark.thorough
@pytest.mark.usefixtures("fake")
def test_some_kinds_of_hostile_code_are_rows(tmp_path: Path) -> None:
    sweep_kinds(tmp_path, SAMPLE)


@pytest.mark.thorough
@pytest.mark.usefixtures("fake")
def test_all_kinds_of_hostile_code_are_rows(tmp_path: Path) -> None:
    sweep_kinds(tmp_path, tuple(KINDS))


@pytest.mark.usefixtures("fake")
def test_what_code_prints_is_not_in_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    action = "sys.stdout.write('hel\\x1b[31mlo\\n' + 'x' * 100_000); os.system('echo world')"
    lines = [f'metric = "{write(tmp_path, "talks", action)}"', 'models = ["mnist_mlp"]']
    lines += ['schemes = ["float32"]', "n_eval = 20", "latency.runs = 0"]
    (tmp_path / "s.toml").write_text("\n".join(lines))
    assert (
        run_command(["sweep", str(tmp_path / "s.toml"), "-o", f"{tmp_path}/r.csv", "--json"]) == 0
    )
    said = capsys.readouterr()
    assert json.loads(said.out)["failed"] == 0
    assert "hel\\x1b[31mlo\n" in said.err
    assert "the rest of what this cell prints is left out" in said.err
    assert len(said.err) < 2 * isolation.PRINTED


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import os; os._exit(0)", "adapter .*bad.py: ended the process with exit code 0"),
        ("import ctypes; ctypes.string_at(0)", "adapter .*bad.py: segmentation fault"),
        ("raise KeyboardInterrupt", "adapter .*bad.py: KeyboardInterrupt"),
        ("exit(0)", "adapter .*bad.py failed: SystemExit: 0"),
        ("while True: pass", "adapter .*bad.py: no sign of life for 0.5 s"),
        ("class Data(list): pass\ndef data(): raise ZeroDivisionError", "data set .*ZeroDivision"),
    ],
)
def test_reading_a_specification_neither_ends_nor_hangs_the_sweep(
    text: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.py").write_text(text)
    where = f"{tmp_path / 'bad.py'}"
    more = {"dataset": f"{where}:data"} if "data" in text else {"adapters": [where]}
    asked = {"models": ["mnist_mlp"], "schemes": ["float32"], "timeout_s": 0.5, **more}
    with pytest.raises(ConfigError, match=says):
        experiments.sweep(asked, tmp_path / "r.csv")


@pytest.mark.thorough
@pytest.mark.usefixtures("fake")
def test_code_without_a_sign_of_life_is_a_row_without_a_limit_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "SILENCE_S", 1.0)
    metrics = [write(tmp_path, "sleep", "time.sleep(1e6)"), write(tmp_path, "good", "pass")]
    table = experiments.sweep(spec(metrics), tmp_path / "r.csv")
    assert table["status"].tolist() == ["timeout", "ok"]
    assert table["error"][0] == "metric sleep (sleep of does_sleep.py): no sign of life for 1 s"


@pytest.mark.usefixtures("fake")
def test_ctrl_c_ends_a_sweep_whose_code_hangs(tmp_path: Path) -> None:
    action = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(1e6)"
    metrics = [write(tmp_path, "good", "pass"), write(tmp_path, "hangs", action)]
    out = tmp_path / "r.csv"

    def press() -> None:
        while not out.exists() or out.read_bytes().count(b"\n") < 2:
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    # Shells start what runs in the background with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            experiments.sweep(spec(metrics), out)
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    # The cell that it stopped in has no row, and is run again.
    write(tmp_path, "hangs", "pass")
    assert experiments.sweep(spec(metrics), out, resume=True)["status"].tolist() == ["ok", "ok"]


@pytest.mark.usefixtures("fake")
def test_what_an_adapter_leaves_for_cells_is_there_until_the_sweep_ends(tmp_path: Path) -> None:
    text = "import os, shutil, tempfile\nimport experiments\nfrom experiments import zoo\n"
    text += "path = os.path.join(tempfile.gettempdir(), 'made.onnx')\n"
    text += "if not os.path.exists(path): shutil.copy(zoo.find('mnist_mlp'), path)\n"
    text += "experiments.register_model('made', path)\n"
    (tmp_path / "a.py").write_text(text)
    asked = spec(["top1"], adapters=[str(tmp_path / "a.py")])
    asked["models"] = ["made"]
    table = experiments.sweep(asked, tmp_path / "r.csv")
    assert table["status"].tolist() == ["ok"], table["error"][0]


@pytest.mark.thorough
def test_temporary_files_go_with_a_process_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, signal, tempfile; from experiments.user_code import isolation\n"
        "def body(): open(tempfile.mkstemp()[1], 'w'); os.kill(sweep, 9); signal.pause()\n"
        "sweep = os.getpid(); isolation.call(body)"
    )
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)})
    until = time.monotonic() + 20
    while list(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.01)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("fake")
def test_what_was_registered_here_runs_apart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments.measure.scoring, "_REGISTERED", {})
    monkeypatch.setattr(
        experiments.measure.scoring, "_METRICS", dict(experiments.measure.scoring._METRICS)
    )
    experiments.register_metric("where", lambda outputs, labels: [os.getpid()] * len(outputs))
    table = experiments.sweep(spec(["where"]), tmp_path / "r.csv")
    assert table["metric"][0] != os.getpid()


def test_cells_without_code_of_the_user_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: None
) -> None:
    monkeypatch.setattr(isolation, "Kept", None)
    table = experiments.sweep(spec(["top1"]), tmp_path / "r.csv")
    assert table["status"].tolist() == ["ok"]


def test_a_limit_of_memory_is_a_number() -> None:
    assert load_spec(spec(["top1"], memory_gib=0.5)).memory == 2**29
    for wrong in (0, -1, True, "much"):
        with pytest.raises(ConfigError, match="memory_gib must be a number of GiB above 0"):
            load_spec(spec(["top1"], memory_gib=wrong))


C_SOURCE = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static float value(uint32_t a) {{ float f; memcpy(&f, &a, 4); return f; }}
static uint32_t of(float f) {{ uint32_t a; memcpy(&a, &f, 4); return a; }}
float cut_value(uint32_t a) {{ return value(a); }}
uint32_t cut_of(float f) {{ return of(f); }}
uint32_t cut_add(uint32_t a, uint32_t b) {{ return of(value(a) + value(b)); }}
uint32_t cut_mul(uint32_t a, uint32_t b) {{ {action}; return of(value(a) * value(b)); }}
uint32_t cut_max(uint32_t a, uint32_t b) {{ return value(a) < value(b) ? b : a; }}
"""
C_ADAPTER = """
from datatypes import create_lower_func, load_library, register, register_op
load_library({library!r})
register("cut")
for op in ("Add", "Mul", "Max"):
    register_op(create_lower_func({{32: f"cut_{{op.lower()}}"}}), op, "llvm", "cut")
register_op(create_lower_func({{(32, 32): "cut_of"}}), "Cast", "llvm", "float", "cut")
register_op(create_lower_func({{(32, 32): "cut_value"}}), "Cast", "llvm", "cut", "float")
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("action", "status", "says"),
    [
        (
            "*(volatile int *)8 = 1",
            "error",
            "segmentation fault (SIGSEGV), in C function cut_mul of c",
        ),
        ("abort()", "error", "aborted (SIGABRT), in C function cut_mul of cut.so"),
        ("exit(0)", "error", "ended the process with exit code 0, in C function cut_mul of cut.so"),
        ("for (;;) memcpy(&b, &a, 4)", "timeout", "took more than 9 s"),
    ],
)
def test_c_functions_that_end_or_hang_are_rows_that_name_them(
    action: str, status: str, says: str, tmp_path: Path
) -> None:
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    (tmp_path / "cut.c").write_text(C_SOURCE.format(action=action))
    build = ["cc", "-O1", "-shared", "-fPIC", "cut.c", "-o", "cut.so"]
    subprocess.run(build, cwd=tmp_path, check=True)
    (tmp_path / "cut.py").write_text(C_ADAPTER.format(library=str(tmp_path / "cut.so")))
    asked = spec(["top1"], adapters=[str(tmp_path / "cut.py")], timeout_s=9, n_eval=1)
    asked["schemes"] = ["custom[cut]32", "float32"]
    table = experiments.sweep(asked, tmp_path / "r.csv")
    assert table["status"].tolist() == [status, "ok"]
    error = table["error"][0]
    assert error.startswith("custom[cut]32 (C functions cut_add, cut_max, cut_mul, cut_of, cut_val")
    assert says in error


@pytest.mark.thorough
def test_a_fresh_process_runs_code_apart_before_it_has_compiled_anything() -> None:
    program = "from experiments.user_code import isolation; print(isolation.call(lambda: 'apart'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("apart\n", "")
