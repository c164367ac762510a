"""Reads ONNX protobufs: the file, its opset, its tensors (also from external data)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from compiler.dtypes import DType
from compiler.errors import ModelError, UnsupportedError
from compiler.ir.expr import Constant

OLDEST_OPSET = 7

_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
}  # fmt: skip
CODES = {name: code for code, name in _DTYPES.items()}
"""ONNX element type of a dtype, by its name."""
_EXTERNAL = 1


def element_dtype(code: int, what: str) -> DType:
    """DType of an ONNX `TensorProto.DataType` code.

    Raises:
        UnsupportedError: we have no such dtype.
    """
    if code not in _DTYPES:
        import onnx

        known = onnx.TensorProto.DataType.keys()
        name = onnx.TensorProto.DataType.Name(code) if 0 <= code < len(known) else str(code)
        raise UnsupportedError(
            f"{what} has element type {name}; supported: {', '.join(_DTYPES.values())}"
        )
    return DType.parse(_DTYPES[code])


def read_model(source: Any) -> tuple[Any, Path | None]:
    """The ModelProto behind a path, bytes or a ModelProto, and the folder of its external data.

    Raises:
        ModelError: no such file, a directory, or not an ONNX model.
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
    if path.is_dir():
        raise ModelError(f"{path} is a directory; give the path of an .onnx file")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"there is no file {path}") from None
    except OSError as e:
        raise ModelError(f"cannot read {path}: {e.strerror}") from None
    except ValueError as e:
        raise ModelError(f"{str(path)!r} is not a path: {e}") from None
    return _parse(data, str(path)), path.parent


def _parse(data: bytes, what: str) -> Any:
    import importlib

    import onnx

    protobuf = importlib.import_module("google.protobuf.message")

    if not data:
        raise ModelError(f"{what} is empty; an ONNX model was expected")
    try:
        model = onnx.load_model_from_string(data)
    except (protobuf.DecodeError, ValueError, RuntimeError):
        raise ModelError(
            f"{what} is not an ONNX model, or is cut short ({len(data)} bytes); export it again"
        ) from None
    if not _text_is_valid(model):
        raise ModelError(f"{what} is damaged: it holds names that are not UTF-8; export it again")
    if not model.HasField("graph"):
        raise ModelError(f"{what} holds no graph; it is not an ONNX model, or is cut short")
    return model


def _text_is_valid(message: Any) -> bool:
    """Whether all names are text (protobuf hands out bytes for those that are not UTF-8)."""
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        single = isinstance(value, (str, bytes)) or hasattr(value, "ListFields")
        for v in [value] if single else value:
            if isinstance(v, bytes) or (not isinstance(v, str) and not _text_is_valid(v)):
                return False
    return True


def opset_of(model: Any) -> int:
    """Version of the default operator set.

    Raises:
        ModelError: none is given.
        UnsupportedError: older than OLDEST_OPSET, or newer than the installed onnx knows.
    """
    import onnx

    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if not versions:
        raise ModelError("the model does not say its opset version; export it again")
    newest = onnx.defs.onnx_opset_version()
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


def constant(tensor: Any, folder: Path | None, what: str) -> Constant:
    """The value of a TensorProto; `folder` is where external data may lie.

    Raises:
        ModelError: data is missing, of the wrong size, or outside `folder`.
        UnsupportedError: an element type that we do not have.
    """
    from onnx import numpy_helper

    dtype = element_dtype(tensor.data_type, what)
    if tensor.data_location == _EXTERNAL:
        raw = _external_bytes(tensor, folder, what)
        count = int(np.prod(tensor.dims, dtype=np.int64))
        if len(raw) != count * dtype.nbytes:
            raise ModelError(
                f"{what}: {count * dtype.nbytes} bytes of external data are needed, not {len(raw)}"
            )
        data = np.frombuffer(raw, dtype.storage.newbyteorder("<")).astype(dtype.storage)
        return Constant(data.reshape(tuple(tensor.dims)), dtype)
    try:
        data = np.array(numpy_helper.to_array(tensor), dtype.storage, order="C")
    except (ValueError, TypeError) as e:
        raise ModelError(f"{what}: its data does not fit its shape ({e})") from None
    return Constant(data, dtype)


def _external_bytes(tensor: Any, folder: Path | None, what: str) -> bytes:
    info = {e.key: e.value for e in tensor.external_data}
    location = info.get("location", "")
    if folder is None:
        raise ModelError(
            f"{what} is stored in the file {location!r}: give from_onnx the path of the model"
        )
    root = folder.resolve()
    path = (root / location).resolve()
    if not location or not path.is_relative_to(root):
        raise ModelError(
            f"{what} is stored in {location!r}, outside the model's folder, which is refused: "
            "move the file beside the model"
        )
    try:
        offset, length = int(info.get("offset", 0)), int(info.get("length", -1))
        with path.open("rb") as file:
            file.seek(offset)
            data: bytes = file.read(length)
            return data
    except OSError as e:
        raise ModelError(f"{what} is stored in {location!r}: {e.strerror}") from None
    except ValueError as e:
        raise ModelError(f"{what}: wrong external data record ({e})") from None
