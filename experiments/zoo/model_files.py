"""Model files by name or path, imported for batches of a size."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compiler.errors import ConfigError, DtypelabError, InputError, unknown
from experiments import zoo
from experiments.feeds import (
    EACH,
    ROWS,
    Array,
    Feed,
    batch_of,
    feed_of,
    inner_batches,
)
from experiments.zoo.import_engines import as_held
from experiments.zoo.import_engines import imported_with as imported_with
from experiments.zoo.import_engines import importing_with as importing_with

if TYPE_CHECKING:
    from compiler.frontend.model_inputs import ModelInterface
    from compiler.ir.expr import IRModule
    from compiler.symbolic import Dim
    from compiler.types.tensor_types import TensorType


def model_file(name_or_path: str) -> Path:
    """Path of a model: a shipped name, or a file.

    Raises:
        ConfigError: there is neither.
    """
    path = zoo.find(name_or_path) or Path(name_or_path)
    if os.path.isfile(path):
        return path
    if path.suffix == ".onnx" or path.parent != Path():
        raise ConfigError(f"there is no model file {path}")
    raise ConfigError(
        f"{unknown('model', name_or_path, zoo.sources())} (or the path of an .onnx file)"
    )


#: Input name -> dimensions, hashable; a string is a symbolic dimension, None is as in the model.
Shapes = tuple[tuple[str, tuple[int | str | None, ...]], ...]


#: When a file was changed, and its size.
Stamp = tuple[int, int]


def external_files(path: Path) -> tuple[Path, ...]:
    """The files beside a model file that hold weights of it.

    Raises:
        DtypelabError: the file is no model.
    """
    return _external_files(path, _stamp(path))


def files_of(name_or_path: str) -> tuple[Path, ...]:
    """The files that a model is read from; none of what is no model, as reading it will say."""
    try:
        path = model_file(name_or_path)
        return path, *external_files(path)
    except DtypelabError:
        return ()


@lru_cache(maxsize=64)
def _external_files(path: Path, stamp: Stamp) -> tuple[Path, ...]:
    from compiler.frontend.external_files import external_files

    return external_files(path)


def _stamp(path: Path) -> Stamp:
    try:
        about = path.stat()
    except OSError:  # importing it will say so
        return 0, 0
    return about.st_mtime_ns, about.st_size


#: When the files of a model were changed, their sizes, and the engines that it is imported with.
Stamps = tuple[tuple[Stamp, ...], tuple[str, ...]]


def stamps_of(path: Path) -> Stamps:
    """Those of all files of a model: what was imported before they changed is another one."""
    try:
        files = external_files(path)
    except DtypelabError:  # importing it will say so
        files = ()
    return tuple(map(_stamp, (path, *files))), importing_with()


def load_model(path: Path, shapes: Shapes = ()) -> IRModule:
    """Import a model, with the shapes of these inputs fixed; but for sizes that one of its branches
    cannot have (a voice detector has one for each sample rate): these stay open, as another branch
    may be the one that runs, and are checked in it.

    Raises:
        DtypelabError: the file is no model that we can import, or the shapes do not fit it.
    """
    return _load(path, shapes, stamps_of(path))


@lru_cache(maxsize=8)
def _load(path: Path, shapes: Shapes, stamps: Stamps) -> IRModule:
    import compiler

    engines = importing_with()
    try:
        module: IRModule = compiler.from_onnx(path, shapes=dict(shapes) or None, engines=engines)
        return module
    except DtypelabError as error:
        if not (shapes and interface_of(path).branches):
            raise
        for fewer in _opened(path, shapes):
            try:
                module = compiler.from_onnx(path, shapes=fewer, engines=engines)
                break
            except DtypelabError:
                continue
        else:
            raise error
        return module


def _opened(path: Path, shapes: Shapes) -> Iterator[dict[str, tuple[int | str | None, ...]]]:
    """The shapes with the sizes that the model leaves open left so, one after the other."""
    types, given = input_types(path), dict(shapes)
    found = {n: types[n].shape for n, dims in given.items() if types[n].rank == len(dims)}
    for one in dict.fromkeys(d for dims in found.values() for d in dims if not isinstance(d, int)):
        yield {
            n: tuple(None if a == one else b for a, b in zip(found.get(n, dims), dims, strict=True))
            for n, dims in given.items()
        }


def inputs_of(module: IRModule) -> dict[str, TensorType]:
    """The module's inputs in order: name -> type."""
    from compiler.ir.expr import tensor_type

    return {parameter.name: tensor_type(parameter) for parameter in module.main.params}


def input_types(path: Path, shapes: Shapes = ()) -> dict[str, TensorType]:
    """The inputs that `load_model` gives, found without importing the model.

    Raises:
        DtypelabError: as `load_model`.
    """
    return interface_of(path).types(dict(shapes), importing_with())


def packed_inputs(path: Path) -> dict[str, str]:
    """Inputs that are no tensors of numbers, and their types as text, of a model that is imported
    with engines; else nothing.

    Raises:
        DtypelabError: the file is no model.
    """
    return interface_of(path).packed if importing_with() else {}


def input_names(path: Path) -> list[str]:
    """The model's inputs in order.

    Raises:
        DtypelabError: the file is no model.
    """
    return list(interface_of(path).inputs)


def output_names(path: Path) -> tuple[str, ...]:
    """The model's outputs in order.

    Raises:
        DtypelabError: the file is no model.
    """
    return interface_of(path).outputs


def declared_outputs(path: Path) -> Mapping[str, tuple[int | None, ...] | None]:
    """What the model file says of its outputs' dimensions; nothing if it is no model."""
    try:
        return interface_of(path).output_dims
    except DtypelabError:
        return {}


def metadata(path: Path) -> Mapping[str, str]:
    """What the model file says of itself, by keys of anybody's choice.

    Raises:
        DtypelabError: the file is no model.
    """
    return interface_of(path).metadata


def feed(path: Path, arrays: Mapping[str, Array], what: str, shapes: Shapes = ()) -> Feed:
    """Arrays by input name as examples for a model, whose open sizes may be fixed by `shapes`; with
    the dtypes of the model. Floats are taken for an input of a type that numpy does not have if
    each of them is a number of that type.

    Raises:
        DtypelabError: see `feeds.feed_of` and `bind_inputs`; or the file is no model.
    """
    from compiler.boundary.elements import exact_codes
    from compiler.boundary.inputs import bind_inputs
    from compiler.types.tensor_types import TensorType

    interface = interface_of(path)
    known = dict(shapes)
    for name, dims in interface.inputs.items():
        if dims is None and name not in known and np.ndim(arrays.get(name, 0)):
            # The model leaves the rank open too: it is what is given.
            known[name] = ("N", *np.shape(arrays[name])[1:])
        elif dims is None:
            known.setdefault(name, ())
    types = interface.types(known, importing_with())
    arrays = {name: as_held(a, types.get(name), name) for name, a in arrays.items()}
    found = feed_of(types, arrays, what, _alike(path, types, tuple(known.items())))
    fitting = []
    for name, t in types.items():
        sizes: list[Dim] = list(t.shape)
        if found.kinds[name] == EACH:
            sizes.insert(0, len(found))
        elif found.kinds[name] == ROWS:
            sizes[found.axis(name)] = len(found)
        fitting.append((name, TensorType.of(sizes, t.dtype)))
    try:
        held = {n: exact_codes(a, types[n].dtype) for n, a in found.arrays.items()}
        bound, _ = bind_inputs(fitting, (), held)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    return replace(found, arrays=dict(zip(types, bound, strict=True)))


def _alike(path: Path, types: Mapping[str, TensorType], shapes: Shapes) -> frozenset[Dim]:
    """The inputs' dimensions that the model needs to be the batch's although they have other names,
    or none: a state [2, ?, 128] beside audio [?, samples]. Only asked of the whole model where an
    input has such a dimension behind a fixed one."""
    from compiler.symbolic import Var

    batch = batch_of(types)
    behind: set[Dim] = {
        d
        for name, t in types.items()
        if t.rank and isinstance(t.shape[0], int) and name not in inner_batches(types)
        for d in t.shape[1:]
        if isinstance(d, Var)
    }
    if batch is None or not behind:
        return frozenset()
    return frozenset(behind & _same_as(path, batch, shapes, stamps_of(path)))


@lru_cache(maxsize=64)
def _same_as(path: Path, batch: Dim, shapes: Shapes, stamps: Stamps) -> frozenset[Dim]:
    """The dimensions that a model assumes to be equal to one, in its branches too."""
    from compiler.boundary.assumptions import assumptions
    from compiler.ir.expr import nested

    try:
        functions = [load_model(path, shapes).main]
    except DtypelabError:  # running it will say why
        return frozenset()
    for f in functions:  # grows as it goes
        functions += [inner for b in f.bindings for inner in nested(b.value)]
    assumed = [a for f in functions for a in assumptions(f)]
    pairs = [(a.size, a.equal) for a in assumed if not a.differs]
    same = {batch}
    while more := {d for pair in pairs if same & {*pair} for d in pair} - same:
        same |= more
    return frozenset(same)


def takes_rows(path: Path, x: Array) -> bool:
    """Whether the rows of an array are examples for a model with one input, as far as ranks and
    dtypes tell."""
    interface = interface_of(path)
    ((name, dims),) = interface.inputs.items()
    if dims is None:
        return True
    kind = interface.types(engines=importing_with())[name]
    return kind.rank == x.ndim > 0 and kind.dtype.storage == x.dtype


def interface_of(path: Path) -> ModelInterface:
    """What a model file declares; a model whose sizes are open may need them to be imported.

    Raises:
        DtypelabError: the file is no model.
    """
    return _interface(path, _stamp(path))


@lru_cache(maxsize=8)
def _interface(path: Path, stamp: Stamp) -> ModelInterface:
    from compiler.frontend.model_inputs import model_interface

    return model_interface(path)
