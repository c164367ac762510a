"""Reads ONNX protobufs: the file, its opset, its tensors (also from external data),
attributes of its nodes as Python values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compiler.errors import ModelError, UnsupportedError
from compiler.files.reading import open_file
from compiler.frontend.element_types import NARROW, element_dtype, stored
from compiler.frontend.external_data import LONGEST_NAME, external_bytes, unpacked
from compiler.frontend.framing import LARGEST, is_framed
from compiler.frontend.limits import Budget
from compiler.frontend.local_functions import all_nodes
from compiler.ir.expr import Constant

OLDEST_OPSET = 7

_EXTERNAL = 1
_NAMES = ("name", "op_type", "domain", "input", "output", "overload", "dim_param")


def read_model(source: Any, limit: int) -> tuple[Any, Path | None]:
    """The ModelProto behind a path, bytes or a ModelProto, and the folder of its external data.

    Raises:
        ModelError: no such file, a directory, a file of more than `limit` bytes, or not a model.
    """
    import onnx

    if isinstance(source, onnx.ModelProto):
        return source, None
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parse(bytes(source), "the given bytes"), None
    if not isinstance(source, (str, Path)):
        raise ModelError(
            f"from_onnx takes a path, bytes or a ModelProto, not {type(source).__name__}"
        )
    path = Path(source)
    return _parse(model_bytes(path, limit), str(path)), path.parent


def model_bytes(path: Path, limit: int) -> bytes:
    """The content of a model file.

    Raises:
        ModelError: no such file, a directory, one of more than `limit` bytes, or, if it is large,
            no protobuf: that is seen before it is read.
    """
    if os.path.isdir(path):
        raise ModelError(f"{path} is a directory; give the path of an .onnx file")
    try:
        size = path.stat().st_size
        if size > limit:
            raise ModelError(f"{path} has {size} bytes, more than memory_limit={limit}; raise it")
        with open_file(path, "the model", ModelError, None) as file:
            if size > LARGEST:
                raise ModelError(
                    f"{path} has {size} bytes, but no ONNX model has more than {LARGEST}: larger "
                    "ones keep their weights in files beside them; export it with external data"
                )
            if not is_framed(file, size):
                raise ModelError(_no_model(path, size))
            file.seek(0)
            return file.read() or b""
    except MemoryError:
        raise ModelError(f"{path} has {size} bytes, more than this machine can hold") from None
    except FileNotFoundError:
        raise ModelError(f"there is no file {path}") from None
    except OSError as e:
        raise ModelError(f"cannot read {path}: {e.strerror}") from None
    except ValueError as e:
        raise ModelError(f"{str(path)!r} is not a path: {e}") from None


def _no_model(what: object, size: int) -> str:
    return f"{what} is not an ONNX model, or is cut short ({size} bytes); export it again"


def _parse(data: bytes, what: str) -> Any:
    import importlib

    import onnx

    protobuf = importlib.import_module("google.protobuf.message")

    if not data:
        raise ModelError(f"{what} is empty; an ONNX model was expected")
    try:
        model = onnx.load_model_from_string(data)
    except (protobuf.DecodeError, ValueError, RuntimeError):
        raise ModelError(_no_model(what, len(data))) from None
    _check_text(model, what)
    if not model.HasField("graph"):
        raise ModelError(f"{what} holds no graph; it is not an ONNX model, or is cut short")
    return model


def _check_text(message: Any, what: str) -> None:
    """Check that names are text (protobuf hands out bytes for those that are not UTF-8), and not
    too long for a message to show.

    Raises:
        ModelError: one is not.
    """
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        single = isinstance(value, (str, bytes)) or hasattr(value, "ListFields")
        for v in [value] if single else value:
            if isinstance(v, bytes):
                raise ModelError(
                    f"{what} is damaged: it holds names that are not UTF-8; export it again"
                )
            if not isinstance(v, str):
                _check_text(v, what)
            elif field.name in _NAMES and len(v) > LONGEST_NAME:
                raise ModelError(f"{what} holds a name of {len(v)} characters; export it again")


def opset_of(model: Any) -> int:
    """Version of the default operator set by which the model is read: its own, or OLDEST_OPSET if
    it is older and none of its operators has changed between the two.

    Raises:
        ModelError: none is given.
        UnsupportedError: too old, or newer than the installed onnx knows.
    """
    import onnx

    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if not versions and not any(n.domain in ("", "ai.onnx") for n in all_nodes(model.graph)):
        return int(onnx.defs.onnx_opset_version())  # what it uses is of other domains
    if not versions:
        raise ModelError("the model does not say its opset version; export it again")
    newest = onnx.defs.onnx_opset_version()
    if 1 <= versions[0] < OLDEST_OPSET and _unchanged(model, versions[0]):
        return OLDEST_OPSET
    if not OLDEST_OPSET <= versions[0] <= newest:
        hint = (
            "convert it with onnx.version_converter"
            if versions[0] < OLDEST_OPSET
            else "export it with a lower opset_version, or install a newer onnx"
        )
        raise UnsupportedError(
            f"the model uses opset {versions[0]}; opsets {OLDEST_OPSET} to {newest} are supported: "
            + hint
        )
    return int(versions[0])


def _unchanged(model: Any, opset: int) -> bool:
    """Whether all of the model's operators mean in OLDEST_OPSET what they mean in `opset`."""
    import onnx

    used = {n.op_type for n in all_nodes(model.graph) if n.domain in ("", "ai.onnx")}
    try:
        since = [onnx.defs.get_schema(op, OLDEST_OPSET, "").since_version for op in used]
    except onnx.defs.SchemaError:
        return False
    return not model.functions and all(s <= opset for s in since)


def constant(tensor: Any, folder: Path | None, what: str, budget: Budget) -> Constant:
    """The value of a TensorProto; `folder` is where external data may lie.

    Raises:
        ModelError: data is missing, of the wrong size, outside `folder`, or beyond the budget.
        UnsupportedError: an element type that we do not have.
    """
    from onnx import numpy_helper

    dtype, shape = element_dtype(tensor.data_type, what), tuple(tensor.dims)
    size = budget.reserve(shape, dtype.nbytes, what)
    bits = NARROW[tensor.data_type].bits if tensor.data_type in NARROW else dtype.bits
    if tensor.data_location == _EXTERNAL:
        count = size // dtype.nbytes
        raw = external_bytes(tensor, folder, what, -(-count * bits // 8), budget)
        if bits < 8:
            signed = dtype.storage.kind == "i"
            return Constant(unpacked(raw, count, bits, signed).reshape(shape), dtype)
        data = raw.view(dtype.storage.newbyteorder("<")).astype(dtype.storage, copy=False)
        if not data.flags["ALIGNED"]:
            data = data.copy()
        return Constant(data.reshape(shape), dtype)
    try:
        data = stored(numpy_helper.to_array(tensor), dtype)
    except (ValueError, TypeError) as e:
        raise ModelError(f"{what}: its data does not fit its shape ({e})") from None
    return Constant(data, dtype)


def attribute_value(a: Any, where: str, folder: Path | None, budget: Budget) -> Any:
    """The value of an AttributeProto: a number, text, a tuple of these, a Constant or a GraphProto.

    Raises:
        ModelError: it refers to an attribute of a function, or its tensor is not valid.
        UnsupportedError: it is sparse, or several graphs.
    """
    from onnx import AttributeProto, helper

    if a.ref_attr_name:
        raise ModelError(f"{where}: its attribute {a.name!r} refers to one of no function")
    if a.type == AttributeProto.TENSOR:
        return constant(a.t, folder, f"{where}: attribute {a.name!r}", budget)
    if a.type == AttributeProto.GRAPH:
        return a.g
    if a.type in (AttributeProto.GRAPHS, AttributeProto.SPARSE_TENSOR):
        raise UnsupportedError(f"{where} is not supported with its attribute {a.name!r}")
    v = helper.get_attribute_value(a)
    if isinstance(v, bytes):
        return v.decode(errors="replace")
    if isinstance(v, str) or not isinstance(v, Sequence):
        return v
    return tuple(x.decode(errors="replace") if isinstance(x, bytes) else x for x in v)
