"""Small programs and files that tests of pages share."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array

HOSTILE = "</script><script>alert(1)</script><!--<b onload='x'>\"&amp;"


def relu(shape: tuple[int, ...], dtype: str = "float32", name: str = "x") -> IRModule:
    """A program whose output has the input's shape."""
    b = FunctionBuilder()
    return IRModule({"main": b.finish(b.call("nn.relu", b.param(name, shape, dtype)))})


def unchanged(shape: tuple[int, ...], dtype: str) -> IRModule:
    """A program that gives its input, as another shape."""
    b = FunctionBuilder()
    flat = b.call("reshape", b.param("x", shape, dtype), newshape=(-1,))
    return IRModule({"main": b.finish(flat)})


def sum_and_product() -> IRModule:
    """A program with two inputs and two outputs."""
    b = FunctionBuilder()
    x, y = b.param("left", (2, 3)), b.param("right", (2, 3))
    return IRModule({"main": b.finish(b.call("add", x, y), b.call("multiply", x, y))})


def parts(page: Path) -> dict[str, str]:
    """The contents of a page's script elements that have an id."""
    found = re.findall(r'<script id="(\w+)"[^>]*>(.*?)</script>', page.read_text(), re.S)
    return dict(found)


def facts(page: Path) -> dict[str, Any]:
    """What a page is told."""
    return dict(json.loads(parts(page)["data"]))


def blob(page: Path, name: str) -> bytes:
    """What is in a page as base64."""
    return base64.b64decode(parts(page)[name])


def png(path: Path, pixels: Array) -> Path:
    """Write uint8 pixels [height, width, 3 or 4] as a picture (PNG, third edition)."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 6 if channels == 4 else 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for kind, part in ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        content += struct.pack(">I", len(part)) + kind + part
        content += struct.pack(">I", zlib.crc32(kind + part))
    path.write_bytes(content)
    return path


def npy(path: Path, array: Array) -> Path:
    """Write a .npy file."""
    np.save(path, array)
    return path
