"""The decorators that make programs of Python functions and classes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from compiler.errors import ParseError
from compiler.ir.expr import Function, GlobalVar, IRModule
from compiler.script.graph_reader import GraphReader, annotated, parameters
from compiler.script.graph_values import ProgramName
from compiler.script.source import Source
from compiler.script.tensor_reader import TensorReader
from compiler.tensor.stmt import PrimFunc
from compiler.types.tensor_types import FuncType, Type


def tensor_program(f: Callable[..., Any]) -> PrimFunc:
    """The tensor program that a Python function describes. Its parameters are annotated with
    `Buffer`; the last ones are those it stores into.

    Raises:
        ParseError: names file, line and column.
    """
    return TensorReader(Source(f)).read()


def graph_function(f: Callable[..., Any]) -> Any:
    """The graph function that a Python function describes, whose parameters are annotated with
    `Tensor`. In a class it is read when `module` has seen the whole class.

    Raises:
        ParseError: names file, line and column.
    """
    in_class = f.__qualname__.rpartition(".")[0]
    if in_class and not in_class.endswith("<locals>"):
        return _Unread(f)
    return GraphReader(Source(f)).read()


class _Unread:
    """A graph function in a class that is not complete yet."""

    def __init__(self, f: Callable[..., Any]):
        self.f = f


def module(cls: type) -> IRModule:
    """Class decorator: the module of the graph functions and tensor programs in a class, which may
    name each other; other variables of the class are known to them as well.

    Raises:
        ParseError: names file, line and column.
    """
    return _Class(cls).read()


class _Class:
    def __init__(self, cls: type):
        own = {k: v for k, v in vars(cls).items() if not k.startswith("__")}
        self.name, self.own = cls.__name__, own
        self.sources = {k: Source(v.f) for k, v in own.items() if isinstance(v, _Unread)}
        self.functions: dict[str, Function | PrimFunc] = {}
        self.open: list[str] = []

    def read(self) -> IRModule:
        """The module, in the order of the class."""
        for name, value in self.own.items():
            if isinstance(value, PrimFunc):
                self.functions[name] = replace(value, name=name)
            elif isinstance(value, Function):
                self.functions[name] = value
        for name in self.sources:
            self.graph(name)
        if not self.functions:
            raise ParseError(
                f"{self.name} has no functions: decorate them with graph_function or tensor_program"
            )
        return IRModule({n: self.functions[n] for n in self.own if n in self.functions})

    def graph(self, name: str) -> None:
        """Read a graph function, unless that has been done."""
        if name in self.functions:
            return
        source = self.sources[name]
        self.open.append(name)
        source.names.update(self.visible(source))
        self.functions[name] = GraphReader(source).read()
        self.open.pop()

    def visible(self, source: Source) -> Mapping[str, Any]:
        """What the names in the class stand for in one of its functions."""
        used = {n.id for n in ast.walk(source.definition) if isinstance(n, ast.Name)}
        out: dict[str, Any] = {}
        for name, value in self.own.items():
            if isinstance(value, PrimFunc):
                out[name] = ProgramName(name, self.program(name))
            elif isinstance(value, _Unread) and name in used:
                out[name] = GlobalVar(name, self.type(name))
            elif not isinstance(value, _Unread):
                out[name] = value
        return out

    def program(self, name: str) -> PrimFunc:
        """A tensor program of the class."""
        f = self.functions[name]
        assert isinstance(f, PrimFunc)
        return f

    def type(self, name: str) -> FuncType:
        """Type of a graph function: as its annotations say, or as it is found out by reading it."""
        source = self.sources[name]
        returns = source.definition.returns
        if returns is not None:
            types: list[Type] = [p.type for p in parameters(source) if p.type is not None]
            return FuncType(tuple(types), annotated(source, returns))
        if name in self.open:
            message = f"{name} is called before it is read: say what it returns, -> Tensor(...)"
            raise source.error(source.definition, message)
        self.graph(name)
        f = self.functions[name]
        assert isinstance(f, Function)
        return f.type
