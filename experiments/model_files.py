"""Model files by name or path, imported for batches of a size."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.errors import ConfigError, DtypelabError, InputError, unknown

from . import zoo

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule
    from compiler.ir.types import TensorType


def model_file(name_or_path: str) -> Path:
    """Path of a model: a shipped name, or a file.

    Raises:
        ConfigError: there is neither.
    """
    path = zoo.find(name_or_path) or Path(name_or_path)
    if path.is_file():
        return path
    if path.suffix == ".onnx" or path.parent != Path():
        raise ConfigError(f"there is no model file {path}")
    raise ConfigError(
        f"{unknown('model', name_or_path, zoo.sources())} (or the path of an .onnx file)"
    )


#: Input name -> dimensions, hashable; a string is a symbolic dimension.
Shapes = tuple[tuple[str, tuple[int | str, ...]], ...]


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


def _stamps(path: Path) -> tuple[Stamp, ...]:
    """Those of all files of a model: what was imported before they changed is another one."""
    try:
        files = external_files(path)
    except DtypelabError:  # importing it will say so
        files = ()
    return tuple(map(_stamp, (path, *files)))


def load_model(path: Path, shapes: Shapes = ()) -> IRModule:
    """Import a model, with the shapes of these inputs fixed.

    Raises:
        DtypelabError: the file is no model that we can import, or the shapes do not fit it.
    """
    return _load(path, shapes, _stamps(path))


@lru_cache(maxsize=8)
def _load(path: Path, shapes: Shapes, stamps: tuple[Stamp, ...]) -> IRModule:
    import compiler

    module: IRModule = compiler.from_onnx(path, shapes=dict(shapes) or None)
    return module


def inputs_of(module: IRModule) -> dict[str, TensorType]:
    """The model's inputs in order: the name in the model file -> type."""
    from compiler.ir.expr import tensor_type

    parameters = module.main.params
    names = module.attrs.get("inputs") or [parameter.name for parameter in parameters]
    return dict(zip(names, map(tensor_type, parameters), strict=True))


def load_for_batch(path: Path, sample_shape: tuple[int, ...], batch: int | str) -> IRModule:
    """Import a model with its single input [batch, *sample_shape]; a string names a symbolic size.

    Raises:
        DtypelabError: as `load_model`, or the model has several inputs.
    """
    names = list(_declared(path, _stamp(path)))
    if len(names) != 1:
        raise InputError(f"data sets feed models with one input; {path.name} has {names}")
    return load_model(path, ((names[0], (batch, *sample_shape)),))


@lru_cache(maxsize=8)
def _declared(path: Path, stamp: Stamp) -> dict[str, tuple[int | None, ...] | None]:
    """The inputs of a model file; a model whose sizes are open may need them to be imported."""
    from compiler.frontend.model_inputs import model_inputs

    return model_inputs(path)


def fixed_batch(path: Path, sample_shape: tuple[int, ...]) -> int | None:
    """The batch size that a model declares, if it can be imported for no other one."""
    shape = next(iter(_declared(path, _stamp(path)).values()), None)
    first = shape[0] if shape else None
    if first is None:
        return None
    try:
        load_for_batch(path, sample_shape, first + 1)
    except DtypelabError:
        return first
    return None


def size_of(path: Path, sample_shape: tuple[int, ...]) -> tuple[int, int]:
    """Multiply-accumulates of one input, and how many operators there are.

    Raises:
        DtypelabError: as `load_for_batch`.
    """
    return _size_of(path, sample_shape, _stamp(path))


@lru_cache(maxsize=64)
def _size_of(path: Path, sample_shape: tuple[int, ...], stamp: Stamp) -> tuple[int, int]:
    from compiler.analysis import cost
    from compiler.transform.preparation import prepare as prepare_module

    batch = fixed_batch(path, sample_shape) or 1
    size = cost(prepare_module(load_for_batch(path, sample_shape, batch)))
    return size.macs // batch, sum(size.operators.values())
