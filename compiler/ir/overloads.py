"""Python's operators on graph-level values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.ir.expression import Expr


class Overloads:
    """Arithmetic, comparison, `x @ y`, fields of tuples by number, and calls of functions.

    The other operand may be a number or an array; a number takes the dtype of this one. `==` stays
    identity: write `compiler.call("equal", x, y)`.
    """

    __array_ufunc__ = None
    """Lets numpy's arrays and numbers on the left leave operators to us."""

    def _with(self, op: str, other: Any, swapped: bool = False) -> Expr:
        from compiler.ir.expression import call, operand

        right = operand(other, like=self)
        return call(op, right, self) if swapped else call(op, self, right)

    def __add__(self, other: Any) -> Expr:
        return self._with("add", other)

    def __radd__(self, other: Any) -> Expr:
        return self._with("add", other, swapped=True)

    def __sub__(self, other: Any) -> Expr:
        return self._with("subtract", other)

    def __rsub__(self, other: Any) -> Expr:
        return self._with("subtract", other, swapped=True)

    def __mul__(self, other: Any) -> Expr:
        return self._with("multiply", other)

    def __rmul__(self, other: Any) -> Expr:
        return self._with("multiply", other, swapped=True)

    def __truediv__(self, other: Any) -> Expr:
        return self._with("divide", other)

    def __rtruediv__(self, other: Any) -> Expr:
        return self._with("divide", other, swapped=True)

    def __pow__(self, other: Any) -> Expr:
        return self._with("power", other)

    def __matmul__(self, other: Any) -> Expr:
        return self._with("nn.matmul", other)

    def __lt__(self, other: Any) -> Expr:
        return self._with("less", other)

    def __le__(self, other: Any) -> Expr:
        return self._with("less_equal", other)

    def __gt__(self, other: Any) -> Expr:
        return self._with("greater", other)

    def __ge__(self, other: Any) -> Expr:
        return self._with("greater_equal", other)

    def __neg__(self) -> Expr:
        from compiler.ir.expression import call

        return call("negative", self)

    def __getitem__(self, index: int) -> Expr:
        from compiler.ir.expression import field

        return field(self, index)

    def __call__(self, *args: Any) -> Expr:
        """A call of the closure that this is."""
        from compiler.ir.expression import apply

        return apply(self, *args)
