"""Circuits run on arrays, by the simulation that Yosys writes in C++ (cxxrtl)."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import DtypelabError
from datatypes.hardware import tools
from datatypes.hardware.generate import Design

Words = npt.NDArray[np.uint32]

_MAIN = """
#include <cstdio>
#include "bench.cc"
int main(int arguments, char **) {{
  cxxrtl_design::p_bench bench;
  int clocks = arguments > 1 ? 1 : {clocks};
  uint32_t in[{reads}], out[{writes}];
  while (fread(in, 4, {reads}, stdin) == {reads}) {{
    {set}
    bench.step();
    for (int k = 0; k < clocks; k++) {{ {tick} }}
    {settle}
    {get}
    fwrite(out, 4, {writes}, stdout);
  }}
  return 0;
}}
"""


class Simulation:
    """Modules of a design, ready to be run; a context manager, which owns a folder.

    Args:
        design: the circuits.
        only: which of its modules; all unless given.

    Raises:
        DtypelabError: a tool is missing.
    """

    def __init__(self, design: Design, only: Sequence[str] | None = None) -> None:
        for lack in (tools.missing(), tools.missing_compiler()):
            if lack:
                raise DtypelabError(f"simulating circuits takes tools: {lack}")
        self.design = design
        self.circuits = {w: c for w, c in design.circuits.items() if only is None or w in only}
        self._inputs = {
            f"{what}{port}": width
            for what, circuit in self.circuits.items()
            for port, width in circuit.inputs.items()
        }
        self._outputs = {
            what: width
            for what, circuit in self.circuits.items()
            for width, _ in circuit.outputs.values()
        }
        self._clocks = max(circuit.cuts for circuit in self.circuits.values())
        self._folder = tempfile.TemporaryDirectory()
        self._program = Path(self._folder.name) / "bench"
        try:
            self._build(Path(self._folder.name))
        except DtypelabError:
            self._folder.cleanup()
            raise

    def __enter__(self) -> Simulation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.cleanup()

    def run(self, what: str, **inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The output of one module for every row of its inputs.

        Args:
            what: the module: add, mul, mac, round, decode or encode.
            inputs: port -> integers [n], or for ports wider than 64 bits words [n, words], the
                lowest first.

        Returns:
            uint64[n], or for an output of more than 64 bits, uint32[n, words].
        """
        return self._run(what, inputs, [])

    def stream(self, what: str, **inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The same with new inputs at every clock: the rows that leave a pipeline, in their order.

        Args:
            what: a module with registers.
            inputs: as `run` takes them.

        Raises:
            DtypelabError: the module has no registers.
        """
        late = self.circuits[what].cuts
        if not late:
            raise DtypelabError(f"{self.circuits[what].name} has no registers, and no clock")
        waiting = {
            port: np.concatenate([v, np.repeat(v[-1:], late - 1, axis=0)])
            for port, v in inputs.items()
        }
        return self._run(what, waiting, ["stream"])[late - 1 :]

    def _run(
        self, what: str, inputs: Mapping[str, npt.NDArray[Any]], arguments: Sequence[str]
    ) -> npt.NDArray[Any]:
        rows = {f"{what}{port}": as_words(v, self._width(what, port)) for port, v in inputs.items()}
        (count,) = {len(words) for words in rows.values()}
        columns = [
            rows.get(name, np.zeros((count, words(width)), np.uint32))
            for name, width in self._inputs.items()
        ]
        data = np.ascontiguousarray(np.concatenate(columns, axis=1)).tobytes()
        command = [str(self._program), *arguments]
        done = subprocess.run(command, input=data, capture_output=True, check=False)
        if done.returncode:
            raise DtypelabError(
                f"the simulation of {self.design.name} ended with {done.returncode}"
            )
        sizes = [words(width) for width in self._outputs.values()]
        result = np.frombuffer(done.stdout, np.uint32).reshape(count, sum(sizes))
        place = list(self._outputs).index(what)
        start = sum(sizes[:place])
        return as_integers(result[:, start : start + sizes[place]])

    def _width(self, what: str, port: str) -> int:
        return self.circuits[what].inputs[port]

    def _build(self, folder: Path) -> None:
        (folder / "design.v").write_text(self.design.verilog + self._bench())
        tools.yosys(
            "read_verilog design.v\nhierarchy -top bench\nproc\nflatten\nopt -fast\n"
            "write_cxxrtl -O6 -g0 bench.cc\n",
            folder,
        )
        set_lines, get_lines, at = [], [], 0
        for name, width in self._inputs.items():
            for k in range(words(width)):
                set_lines.append(f"bench.{_member(name)}.data[{k}] = in[{at}];")
                at += 1
        reads, at = at, 0
        for name, width in self._outputs.items():
            for k in range(words(width)):
                get_lines.append(f"out[{at}] = bench.p_{name}y.curr.data[{k}];")
                at += 1
        tick = "bench.p_clk.set(false); bench.step(); bench.p_clk.set(true); bench.step();"
        main = _MAIN.format(
            reads=reads, writes=at, set=" ".join(set_lines), get=" ".join(get_lines),
            clocks=self._clocks, tick=tick if self._clocks else "",
            settle="bench.step();" if self._clocks else "",
        )  # fmt: skip
        text = (folder / "bench.cc").read_text()
        for name in self._outputs:
            if f"wire<{self._outputs[name]}> p_{name}y" not in text:
                main = main.replace(f"p_{name}y.curr.data", f"p_{name}y.data")
        (folder / "main.cc").write_text(main)
        tools.compile_cpp(folder / "main.cc", self._program)

    def _bench(self) -> str:
        ports = ["input wire clk"] if self._clocks else []
        ports += [f"input wire [{w - 1}:0] {n}" for n, w in self._inputs.items()]
        ports += [f"output wire [{w - 1}:0] {n}y" for n, w in self._outputs.items()]
        units = []
        for what, circuit in self.circuits.items():
            wires = [".clk(clk)"] if circuit.cuts else []
            wires += [f".{port}({what}{port})" for port in circuit.inputs]
            wires += [f".{port}({what}y)" for port in circuit.outputs]
            units.append(f"  {circuit.name} unit_{what}({', '.join(wires)});")
        return "\n".join([f"module bench({', '.join(ports)});", *units, "endmodule", ""])


def _member(port: str) -> str:
    """A port's name in the simulation's C++."""
    return "p_" + port.replace("_", "__")


def words(width: int) -> int:
    """32-bit words of a wire."""
    return -(-width // 32)


def as_words(values: npt.NDArray[Any], width: int) -> Words:
    """uint32[n, words] of integers [n], or of such words."""
    if values.ndim == 2:
        return values.astype(np.uint32)
    if values.dtype == object:
        size = 4 * words(width)
        mask = (1 << width) - 1
        data = b"".join((int(v) & mask).to_bytes(size, "little") for v in values)
        return np.frombuffer(data, np.uint32).reshape(len(values), words(width))
    wide = values.astype(np.uint64)
    parts = [wide & 0xFFFFFFFF, wide >> np.uint64(32)][: words(width)]
    found = np.zeros((len(values), words(width)), np.uint32)
    for k, part in enumerate(parts):
        found[:, k] = part
    return found


def as_integers(found: Words) -> npt.NDArray[Any]:
    """uint64[n] of up to two words; more stay words."""
    if found.shape[1] > 2:
        return found
    wide = found.astype(np.uint64)
    return wide[:, 0] if wide.shape[1] == 1 else wide[:, 0] | wide[:, 1] << np.uint64(32)
