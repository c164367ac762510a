"""Saving executables, and loading them."""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from typing import Any

from compiler.boundary.elements import elements_among
from compiler.boundary.index_ranges import ranges_among
from compiler.codegen.backend import Code
from compiler.codegen.kernel_abi import KernelAbi
from compiler.errors import ModelError, UnsupportedError
from compiler.files.reading import ARRAYS, open_file
from compiler.runtime.executable import Executable, GraphExecutable
from compiler.runtime.kernels import Compiled, Kernel, Written
from compiler.runtime.loader import loader_of
from compiler.runtime.program import Program
from compiler.saved import regions
from compiler.saved.codec import decode, encode
from compiler.saved.file import Reader, Writer, header, target_of
from compiler.saved.libraries import LibraryExecutable, is_library, load_library
from compiler.target.registry import Target
from compiler.types.tensor_types import TensorType
from compiler.vm.build import VMExecutable
from compiler.vm.image import Image

# What zipfile, zlib and json raise for files that are damaged, and reading for parts that lack.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError,
    LookupError, ValueError, TypeError, AttributeError, MemoryError,
)  # fmt: skip


def save(exe: Executable, path: str | os.PathLike[str]) -> None:
    """Write an executable to one file, which `load` reads on any machine whose CPU has what the
    target needs.

    Registered Python and C functions are not in it: they must be there where it is loaded. So must
    engines, but for regions that were written in C, which are saved as their sources.

    Raises:
        ConfigError: the file cannot be written.
        LoweringError: schedule rules or instructions have been registered since the build.
        UnsupportedError: other devices compute parts of it.
    """
    for p in exe.placements:
        raise UnsupportedError(
            f"@{p.name} is computed on device {p.device!r}, and cannot be saved: save the module's "
            "text, or build it for one target"
        )
    writer = Writer()
    manifest = {
        **header(regions.code_target(exe)),
        "threads": exe.threads,
        **regions.written(exe, writer),
    }
    manifest["elements"] = [exe.elements.inputs, exe.elements.outputs]
    manifest["indices"] = [r.row() for r in exe.indices]
    if isinstance(exe, VMExecutable):
        manifest |= {
            "inputs": encode(tuple(exe.params.items())),
            "types": encode(tuple(exe.types.values())),
            "outputs": encode(tuple(exe.outputs.items())),
            "functions": encode(exe.image.functions),
            "assumed": encode(exe.assumed),
            "constants": [writer.array(a) for a in exe.image.constants],
            "graphs": [_graph(g, writer) for g in exe.image.regions],
        }
    elif isinstance(exe, GraphExecutable) and not isinstance(exe, LibraryExecutable):
        manifest |= {"graphs": [_graph(exe, writer)], "kept": encode(exe.kept)}
    else:
        raise ModelError(f"{type(exe).__name__} cannot be saved")
    writer.write(path, manifest)


def _graph(exe: GraphExecutable, writer: Writer) -> dict[str, Any]:
    p = exe.program
    return {
        "plan": encode(
            (
                p.inputs,
                p.outputs,
                p.dims,
                p.workspace,
                p.steps,
                p.externals,
                p.sizes,
                p.assumed,
                p.lowerings,
            )
        ),
        "constants": [writer.array(a) for a in p.constants],
        "kernels": [_kernel(k, writer) for k in p.kernels],
        "entry": [p.entry.symbols, writer.add("code", p.code)],
        "text": writer.add("text", p.entry.text.encode()),
    }


def _kernel(k: Kernel, writer: Writer) -> list[Any]:
    return [
        encode(k.stages),
        encode(k.temps),
        encode(k.dims),
        k.outputs,
        k.tuned,
        writer.add("code", k.code),
        writer.add("text", k.as_text().encode()),
        writer.add("text", k.source.encode()),
    ]


def load(path: str | os.PathLike[str]) -> Executable:
    """The executable that `save` wrote to a file, or the shared library that `compiler.export`
    wrote, ready to run; nothing is compiled.

    The file holds machine code: load only what you would also run.

    Raises:
        ModelError: there is no such file, or it is no executable, is damaged, or is for another
            version of dtypelab or another CPU; or it holds a decoder.
        LoweringError: a C function that the code calls is in no loaded library.
        UnsupportedError: what an engine needs that computes regions of it is not installed.
    """
    if is_library(path):
        return load_library(path)
    exe = read(path)
    if isinstance(exe, GraphExecutable) and exe.kept is not None:
        raise ModelError(
            f"{os.fspath(path)} holds a decoder, which keeps caches: load it with "
            "compiler.load_decoder"
        )
    return exe


def read(path: str | os.PathLike[str]) -> Executable:
    """What is in a file, be it for sessions; raises as `load`."""
    name = os.fspath(path)
    try:
        with (
            open_file(path, "the executable", ModelError, ARRAYS) as file,
            zipfile.ZipFile(file) as archive,
        ):
            return _read(name, archive)
    except OSError as e:
        raise ModelError(f"{name} cannot be read: {e.strerror or e}") from None
    except _DAMAGE as e:
        raise ModelError(
            f"{name} is no saved executable, or is damaged ({e}): build the model again"
        ) from None


def _read(name: str, archive: zipfile.ZipFile) -> Executable:
    bare = Reader(name, archive, {})
    manifest = json.loads(bare.content("manifest.json"))
    if not isinstance(manifest, dict):
        raise ValueError("its manifest is no object")
    target = target_of(name, manifest)
    reader, threads = Reader(name, archive, manifest), int(manifest["threads"])
    found = regions.read(reader)
    graphs = tuple(_read_graph(g, reader, target, threads, found) for g in manifest["graphs"])
    if "functions" not in manifest:
        (graph,) = graphs
        graph.kept = decode(manifest.get("kept"))
        return _declared(graph, manifest, found)
    constants = tuple(map(reader.array, manifest["constants"]))
    image = Image(decode(manifest["functions"]), graphs, constants)
    inputs, outputs = decode(manifest["inputs"]), decode(manifest["outputs"])
    assumed = decode(manifest["assumed"])
    types = {d.name: d for d in decode(manifest["types"])}
    machine = VMExecutable(image, inputs, outputs, target, threads, assumed, types)
    return _declared(machine, manifest, found)


def _declared(exe: Executable, manifest: dict[str, Any], found: regions.Found) -> Executable:
    inputs, outputs = (list(map(str, part)) for part in manifest["elements"])
    types = list(exe.inputs.values()), list(exe.outputs.values())
    exe.elements = elements_among(inputs, outputs, *types)
    exe.indices = ranges_among(manifest["indices"], exe.inputs)
    found.tell(exe)
    return exe


def _read_graph(
    given: Any, reader: Reader, target: Target, threads: int, found: regions.Found
) -> GraphExecutable:
    inputs, outputs, dims, workspace, steps, externals, sizes, assumed, lowerings = decode(
        given["plan"]
    )
    if not all(isinstance(t, TensorType) for _, t in (*inputs, *outputs)):
        raise ValueError("an input or output is no tensor")
    kernels = tuple(_read_kernel(k, reader, target) for k in given["kernels"])
    symbols, code = given["entry"]
    program = Program(
        target=target,
        threads=threads,
        inputs=inputs,
        outputs=outputs,
        kernels=kernels,
        constants=tuple(map(reader.array, given["constants"])),
        dims=dims,
        workspace=workspace,
        entry=Code(tuple(map(str, symbols)), reader.content(given["text"]).decode()),
        code=reader.content(code),
        steps=steps,
        externals=tuple(map(found.renamed, externals)),
        sizes=sizes,
        assumed=assumed,
        lowerings=lowerings,
    )
    return loader_of(target).load(program)


def _read_kernel(given: Any, reader: Reader, target: Target) -> Kernel:
    stages, temps, dims, outputs, tuned, code, loops, text = given
    abi = KernelAbi(decode(stages), {}, decode(temps))
    compiled = Compiled(abi, reader.content(code))
    written = Written(reader.content(loops).decode(), reader.content(text).decode())
    return Kernel(written, target, abi, compiled, (), int(outputs), (), decode(dims), bool(tuned))
