"""export_page: one HTML file with a network in it, which runs it in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from compiler._html import escaped
from compiler.boundary.elements import elements_of
from compiler.boundary.inputs import bind_inputs
from compiler.codegen import linking
from compiler.errors import ConfigError, InputError, LoweringError, UnsupportedError
from compiler.exporting.export import anywhere, exported_program
from compiler.files.printable import printable
from compiler.files.writing import atomic_path, check_writable
from compiler.ir.expr import IRModule
from compiler.runtime.machines.image import NAME, image_of
from compiler.runtime.machines.linear_memory import Layout
from compiler.runtime.program import Program
from compiler.symbolic import Index
from compiler.target.cpus import WASM32
from compiler.target.registry import Target
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType

LARGEST = 512 << 20
"""Bytes of a page. Chromium holds no text of more than 512 MiB, and parts of a page are texts."""
PROGRAMS = 2
"""That a page shows side by side."""
TIMED, ROUNDS = 600, 3
"""Milliseconds for which each program is measured, and how often: the last time counts."""
_HINT = (
    "Times are of this browser on this machine. Weights are in the form that the program computes "
    "with, which may be wider than the format."
)
_SCRIPTS = ("base.js", "numbers.js", "pictures.js", "results.js", "inputs.js", "start.js")


@dataclass(frozen=True)
class Pictures:
    """How pixels, 0 to 255, become the floats that a network takes: (pixel / divide - mean) / std.

    Attributes:
        divide: one number.
        mean, std: one number, or one for each of three channels, in the network's order.
        order: "rgb" or "bgr".
    """

    divide: float = 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    order: str = "rgb"

    def __post_init__(self) -> None:
        """Raise ConfigError if that is no rule."""
        for name, numbers in self.numbers().items():
            divides = numbers is not self.mean
            known = len(numbers) in (1, 3) and all(map(math.isfinite, numbers))
            if not known or (divides and 0 in numbers):
                raise ConfigError(
                    f"{name} of pixels must be one number, or one for each of three channels"
                    f"{', and not 0' if divides else ''}; not {', '.join(map(str, numbers))}"
                )
        if self.order not in ("rgb", "bgr"):
            raise ConfigError(f"the order of colours is rgb or bgr, not {self.order!r}")

    def numbers(self) -> dict[str, tuple[float, ...]]:
        """All but the order, by name."""
        held = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "order"}
        return {n: v if isinstance(v, tuple) else (v,) for n, v in held.items()}


@dataclass(frozen=True)
class PageProgram:
    """A program in a page.

    Attributes:
        name: what it is called there.
        code_bytes, weights_bytes: of its WebAssembly module, and of its constants.
        arena_bytes: memory that it needs besides.
    """

    name: str
    code_bytes: int
    weights_bytes: int
    arena_bytes: int


@dataclass(frozen=True)
class ExportedPage:
    """A page that `export_page` has written.

    Attributes:
        path: where it is.
        bytes: how large it is.
        target: what its programs are for.
        programs: in order.
    """

    path: Path
    bytes: int
    target: Target
    programs: tuple[PageProgram, ...]


def export_page(
    programs: Mapping[str, IRModule],
    path: str | os.PathLike[str],
    *,
    title: str = "",
    target: str | Target = "wasm32",
    examples: Sequence[Mapping[str, Array]] = (),
    labels: Sequence[str] = (),
    pictures: Pictures | None = None,
    dtype_lowering: str | None = None,
    force: bool = False,
) -> ExportedPage:
    """Write one HTML file that runs `main` of a module in a browser, on pictures and arrays that
    its reader chooses, and shows outputs and times; beside those of a second module, if there is
    one. Nothing is fetched: programs and weights are in the file, which also works from a disk.

    What a program gives there has the bits that it has in `compiler.build` for the same target.

    Args:
        programs: one or two modules without control flow, of known sizes, by the names that the
            page shows; with the same inputs and outputs. The second one is the reference.
        path: the file.
        title: of the page; else the first name.
        target: of WebAssembly.
        examples: inputs by name, for readers without any. The first one is run when the page opens.
        labels: of the classes of an output, in order.
        pictures: what is done to pixels unless a reader changes it.
        dtype_lowering: how custom datatypes are computed, as for `compiler.build`.
        force: write over a file that is there.

    Raises:
        ConfigError: the file is there already or cannot be written, the target is none of
            WebAssembly, sizes are open, an argument is wrong, or the page would be too large.
        InputError: an example does not fit.
        UnsupportedError: control flow, registered functions, inputs or outputs of types that pages
            do not show.
        LoweringError: as for `export`; also if there is no linker.
        OutOfMemoryError: WebAssembly has no addresses for all that.
    """
    place = Path(path)
    if os.path.lexists(place) and not force and not place.is_dir():
        raise ConfigError(f"{path} is there already: give force=True (--force) to write over it")
    check_writable(place)
    chosen = target if isinstance(target, Target) else anywhere(target)
    if chosen.architecture is not WASM32:
        raise ConfigError(f"pages run WebAssembly: give target wasm32, not {str(chosen)!r}")
    if not 1 <= len(programs) <= PROGRAMS:
        raise ConfigError(f"a page has one program or two, not {len(programs)}")
    if why := linking.missing(chosen):
        raise LoweringError(why)
    made = {name: _program(mod, chosen, dtype_lowering) for name, mod in programs.items()}
    first = next(iter(made.values()))
    for name, other in made.items():
        if (other.inputs, other.outputs) != (first.inputs, first.outputs):
            raise ConfigError(
                f"{name} has other inputs or outputs than {next(iter(made))}: {_signature(other)} "
                f"and {_signature(first)}"
            )
    _check_labels(labels, first.outputs)
    given = [_example(first, k, example) for k, example in enumerate(examples)]
    parts = _Parts.of(made, given)
    if (size := sum(map(len, parts.blobs.values()))) > LARGEST:
        raise ConfigError(
            f"the page would have {size / 2**20:,.0f} MiB, and browsers take pages of "
            f"{LARGEST >> 20} MiB: export the network in fewer bits, or a folder"
        )
    facts = {
        "programs": [{"name": printable(p.name), "arena": p.arena_bytes} for p in parts.programs],
        "inputs": [_operand(*o) for o in first.inputs],
        "outputs": [_operand(*o) for o in first.outputs],
        "examples": [None] * len(given),
        "labels": list(map(printable, labels)),
        "pictures": _texts(pictures or Pictures()),
        "budget": TIMED,
        "rounds": ROUNDS,
    }
    names = [printable(p.name) for p in parts.programs]
    content = _page(printable(title or names[0]), names, made, parts, facts).encode()
    with atomic_path(place) as temporary:
        temporary.write_bytes(content)
    return ExportedPage(place, len(content), chosen, tuple(parts.programs))


@dataclass(frozen=True)
class _Parts:
    """What a page holds as base64, by the ids of its elements."""

    programs: list[PageProgram]
    blobs: Mapping[str, str]

    @staticmethod
    def of(made: Mapping[str, Program], examples: Sequence[Sequence[Array]]) -> _Parts:
        programs, blobs = [], {}
        for k, (name, program) in enumerate(made.items()):
            image, arena = image_of(program), program.workspace.constant()
            assert arena is not None
            code = linking.wasm_module(image.objects(), [f"{NAME}_run"])
            weights = image.weights
            held = [np.empty(_shape(t), t.dtype.storage) for _, t in program.outputs]
            taken = [np.empty(_shape(t), t.dtype.storage) for _, t in program.inputs]
            Layout(linking.STACK, len(weights)).call(taken, held, (), arena)  # raises
            blobs[f"wasm{k}"], blobs[f"weights{k}"] = _base64(code), _base64(weights)
            programs.append(PageProgram(name, len(code), len(weights), arena))
        for e, arrays in enumerate(examples):
            blobs |= {f"example{e}_{k}": _base64(a.tobytes()) for k, a in enumerate(arrays)}
        return _Parts(programs, blobs)


def _program(mod: IRModule, target: Target, dtype_lowering: str | None) -> Program:
    """The program of a module, of which everything is known that a page has to know."""
    declared = elements_of(mod)
    program = exported_program(mod, target, dtype_lowering, compiled=True)
    if program.dims:
        names = ", ".join(v.name for v in program.dims)
        raise ConfigError(
            f"a page is for inputs of one size, and {names} may be anything: give all inputs their "
            "sizes (--shape)"
        )
    for what, operands, elements in (
        ("input", program.inputs, declared.inputs),
        ("output", program.outputs, declared.outputs),
    ):
        for k, (name, t) in enumerate(operands):
            element = elements[k] if k < len(elements) else ""
            if element or t.dtype.is_custom:
                raise UnsupportedError(
                    f"{what} {name!r} is of {element or t.dtype}, which pages do not show: make "
                    "it float32"
                )
            if not Index.of(t.size).constant():
                raise UnsupportedError(f"{what} {name!r} is empty: there is nothing to show of it")
    return program


def _example(program: Program, number: int, example: Mapping[str, Array]) -> list[Array]:
    try:
        return bind_inputs(program.inputs, (), example)[0]
    except InputError as error:
        raise InputError(f"example {number + 1}: {error}") from None


def _check_labels(labels: Sequence[str], outputs: Iterable[tuple[str, TensorType]]) -> None:
    counts = {name: max(_shape(t), default=1) for name, t in outputs}
    classes = {n: c for n, c in counts.items() if c == math.prod(_shape(dict(outputs)[n]))}
    if labels and len(labels) not in classes.values():
        found = ", ".join(f"{name!r} has {c}" for name, c in classes.items()) or "there are none"
        raise ConfigError(f"{len(labels)} labels fit no output with classes: {found}")


def _shape(t: TensorType) -> tuple[int, ...]:
    return tuple(Index.of(d).constant() or 0 for d in t.shape)


def _signature(program: Program) -> str:
    listed = [f"{name}: {t}" for name, t in (*program.inputs, *program.outputs)]
    return ", ".join(listed)


def _operand(name: str, t: TensorType) -> dict[str, Any]:
    shape = _shape(t)
    size = t.dtype.storage.itemsize * math.prod(shape)
    return {"name": printable(name), "dtype": str(t.dtype), "shape": shape, "bytes": size}


def _texts(pictures: Pictures) -> dict[str, str]:
    """As readers would type them."""
    rows = pictures.numbers().items()
    texts = {name: ", ".join(f"{n:.9g}" for n in numbers) for name, numbers in rows}
    return {**texts, "order": pictures.order}


def _page(
    title: str,
    names: Sequence[str],
    made: Mapping[str, Program],
    parts: _Parts,
    facts: Mapping[str, Any],
) -> str:
    script, style = "".join(map(_file, _SCRIPTS)), _file("style.css")
    beside = f"{names[0]}, beside {names[1]}" if len(names) > 1 else names[0]
    chosen = [str(c) for p in made.values() for c in p.lowerings]
    filled = {
        "title": escaped(title),
        "summary": escaped(f"{beside}. It runs in this browser, and nothing leaves it."),
        "policy": "default-src 'none'; base-uri 'none'; form-action 'none'; worker-src blob:; "
        f"script-src '{_digest(script)}' 'wasm-unsafe-eval'; style-src '{_digest(style)}'",
        "style": style,
        "script": script,
        "machine": _file("machine.js"),
        "programs": _table(parts.programs),
        "hint": escaped(" ".join([_HINT, *(f"{c}." for c in dict.fromkeys(chosen))])),
        # In a script element "<" may begin its end, or a comment.
        "data": json.dumps(facts, allow_nan=False).replace("<", "\\u003c"),
        "blobs": "\n".join(
            f'<script id="{key}" type="text/plain">{text}</script>'
            for key, text in parts.blobs.items()
        ),
    }  # fmt: skip
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: filled[mark[1]], _file("page.html"))


def _table(programs: Sequence[PageProgram]) -> str:
    """What the programs are, for readers without script, too."""
    heads = ("program", "weights", "code", "memory", "time of a run")
    kinds = ' class="text"', "", "", "", ""
    head = "".join(f'<th scope="col"{k}>{h}</th>' for h, k in zip(heads, kinds, strict=True))
    rows = "".join(
        f'<tr><th scope="row" class="text">{escaped(p.name)}</th><td>{p.weights_bytes:,} B</td>'
        f"<td>{p.code_bytes:,} B</td><td>{p.arena_bytes:,} B</td>"
        f'<td data-time="{k}">not yet run</td></tr>'
        for k, p in enumerate(programs)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _digest(content: str) -> str:
    """What a content security policy calls an inline element (Content Security Policy Level 3)."""
    made = hashlib.sha256(f"\n{content}\n".encode()).digest()
    return f"sha256-{_base64(made)}"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _file(name: str) -> str:
    return resources.files("compiler.exporting").joinpath("web", name).read_text("utf-8")
