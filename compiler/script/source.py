"""The source of a Python function: its statements, the values of its expressions, and errors that
say where in the file they are."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from compiler.arithmetic.scalar_functions import UNARY
from compiler.errors import DtypelabError, ParseError
from compiler.script import loops, scalars

_FILE = "<script>"


class Source:
    """What a decorated function says.

    Attributes:
        definition: its syntax tree.
        names: what the names in it stand for; statements add theirs.
    """

    definition: ast.FunctionDef

    def __init__(self, f: Callable[..., Any]):
        try:
            rows, self._first = inspect.getsourcelines(f)
            self._file = inspect.getsourcefile(f) or "?"
        except (OSError, TypeError):
            name = getattr(f, "__name__", repr(f))
            raise ParseError(f"the source of {name} cannot be read: define it in a file") from None
        text = "".join(rows)
        plain = textwrap.dedent(text)
        self._margin = text.index(plain[:1]) if plain else 0
        (node,) = ast.parse(plain).body
        if not isinstance(node, ast.FunctionDef):
            raise self.error(node, "a function must be decorated")
        self.definition = node
        self.names: dict[str, Any] = {**_builtins(), **_surroundings(f), **_OWN}

    def error(self, node: ast.AST, message: str) -> ParseError:
        """An error at a node."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return self._error(line, column, message)

    def _error(self, line: int, column: int, message: str) -> ParseError:
        line, column = line + self._first - 1, column + self._margin + 1
        return ParseError(f"{self._file}, line {line}, column {column}: {message}")

    def value(self, node: ast.expr) -> Any:
        """The value of an expression.

        Raises:
            ParseError: what goes wrong in it, at the part where it does.
        """
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(self.names.get(part.id), Gone):
                raise self.error(part, self.names[part.id].why)
        try:
            tree = ast.Expression(_Symbolic().visit(node))
            code = compile(ast.fix_missing_locations(tree), _FILE, "eval")
        except (DtypelabError, TypeError, ValueError) as e:
            raise self.error(node, str(e)) from None
        try:
            return eval(code, self.names)
        except ParseError:
            raise
        except Exception as e:
            raise self._inside(node, e) from e

    def _inside(self, node: ast.expr, e: Exception) -> ParseError:
        message = str(e) if isinstance(e, DtypelabError) else f"{type(e).__name__}: {e}"
        for frame in reversed(traceback.extract_tb(e.__traceback__)):
            if frame.filename == _FILE and frame.lineno is not None:
                return self._error(frame.lineno, frame.colno or 0, message)
        return self.error(node, message)


class Gone:
    """What a name stands for that must not be used any more."""

    def __init__(self, why: str):
        self.why = why


def _builtins() -> dict[str, Any]:
    """Python's own functions; those that would ask values for their truth are ours."""
    own: dict[str, Any] = {
        "all": lambda values: scalars.combined("And", *values),
        "any": lambda values: scalars.combined("Or", *values),
        "max": scalars.maximum,
        "min": scalars.minimum,
        "range": loops.counted,
        **{name: scalars.beside_builtin(name) for name in UNARY if hasattr(builtins, name)},
    }
    return {**vars(builtins), **own}


def _surroundings(f: Callable[..., Any]) -> dict[str, Any]:
    """The global variables of a function, and those of the functions around it."""
    found = dict(getattr(f, "__globals__", {}))
    code, cells = getattr(f, "__code__", None), getattr(f, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars if code else (), cells, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # it is not defined yet
    return found


class _Symbolic(ast.NodeTransformer):
    """Turns what Python does not let values redefine (comparisons, and, or, not, if else), and what
    mixes indices with values, into calls."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) != 1:
            raise DtypelabError("compare two values at a time")
        op = type(node.ops[0]).__name__
        return _call(node, "compared", ast.Constant(op), node.left, node.comparators[0])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        return _call(node, "combined", ast.Constant(type(node.op).__name__), *node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return _call(node, "negated", node.operand)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _call(node, "computed", ast.Constant(type(node.op).__name__), node.left, node.right)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return _call(node, "chosen", node.test, node.body, node.orelse)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        return _call(node, "element", node.value, node.slice)


def _call(node: ast.expr, fn: str, *args: ast.expr) -> ast.AST:
    called = ast.Name(f"__{fn}__", ast.Load())
    return ast.copy_location(ast.Call(called, list(args), []), node)


_OWN: Mapping[str, Any] = {
    "__compared__": scalars.compared,
    "__combined__": scalars.combined,
    "__negated__": scalars.negated,
    "__computed__": scalars.computed,
    "__chosen__": scalars.chosen,
    "__element__": scalars.element,
}
