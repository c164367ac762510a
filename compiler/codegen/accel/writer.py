"""LLVM text of control flow: loops and conditions as blocks of Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Writer:
    """Writes the body of one function. Values are names or numbers of type i64, unless said
    otherwise; memory is tables of i64."""

    def __init__(self) -> None:
        self.lines = ["entry:"]
        self.block, self._count = "entry", 0

    def value(self, text: str) -> str:
        """The result of an instruction."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append(f"  {text}")

    def get(self, table: str, k: int | str) -> str:
        """Element `k` of a table."""
        return self.value(f"load i64, ptr {self.at(table, k)}, align 8")

    def put(self, table: str, k: int | str, value: int | str) -> None:
        """Store into element `k` of a table."""
        self.do(f"store i64 {value}, ptr {self.at(table, k)}, align 8")

    def put_add(self, table: str, k: int | str, value: int | str) -> None:
        """Add to element `k` of a table."""
        self.put(table, k, self.add(self.get(table, k), value))

    def at(self, table: str, k: int | str) -> str:
        """The address of element `k` of a table."""
        return self.value(f"getelementptr i64, ptr {table}, i64 {k}")

    def byte(self, memory: str, k: int | str) -> str:
        """The address of byte `k` behind another address."""
        return self.value(f"getelementptr i8, ptr {memory}, i64 {k}")

    def add(self, a: int | str, b: int | str) -> str:
        """a + b."""
        return self.value(f"add i64 {a}, {b}")

    def sub(self, a: int | str, b: int | str) -> str:
        """a - b."""
        return self.value(f"sub i64 {a}, {b}")

    def mul(self, a: int | str, b: int | str) -> str:
        """a * b."""
        return self.value(f"mul i64 {a}, {b}")

    def max(self, a: int | str, b: int | str) -> str:
        """The larger one, signed."""
        return self.value(f"call i64 @llvm.smax.i64(i64 {a}, i64 {b})")

    def ceil_div(self, a: int | str, b: int | str) -> str:
        """a / b rounded up, both positive."""
        return self.value(f"udiv i64 {self.sub(self.add(a, b), 1)}, {b}")

    def bit(self, a: str, k: int) -> str:
        """i1: bit `k`."""
        return self.value(f"trunc i64 {self.value(f'lshr i64 {a}, {k}')} to i1")

    def compare(self, how: str, a: int | str, b: int | str) -> str:
        """i1: a comparison, such as slt."""
        return self.value(f"icmp {how} i64 {a}, {b}")

    def any(self, conditions: Sequence[str]) -> str:
        """i1: whether one of several holds."""
        first, *rest = conditions
        for c in rest:
            first = self.value(f"or i1 {first}, {c}")
        return first

    def table(self, length: int, first: int = 0) -> str:
        """A table of its own, each element of which is `first`."""
        name = self.value(f"alloca [{length} x i64], align 8")
        for k in range(length):
            self.put(name, k, first)
        return name

    def label(self, name: str) -> None:
        """Go on in a block of this name."""
        self.do(f"br label %{name}")
        self.begin(name)

    def begin(self, name: str) -> None:
        """Begin a block; the one before has ended."""
        self.lines.append(f"{name}:")
        self.block = name

    def fresh(self, stem: str) -> str:
        """A new label."""
        self._count += 1
        return f"{stem}{self._count}"

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Do the block if an i1 is true."""
        inside, after = self.fresh("then"), self.fresh("after")
        self.do(f"br i1 {condition}, label %{inside}, label %{after}")
        self.begin(inside)
        yield
        self.label(after)

    @contextmanager
    def loop(self, count: int | str) -> Iterator[str]:
        """Do the block for 0, 1, ... `count` - 1; yields that."""
        head, body, after = self.fresh("loop"), self.fresh("body"), self.fresh("done")
        index, following = self.fresh("%i"), self.fresh("%n")
        before = self.block
        self.do(f"br label %{head}")
        self.begin(head)
        place = len(self.lines)
        self.do(f"%{head}.go = icmp slt i64 {index}, {count}")
        self.do(f"br i1 %{head}.go, label %{body}, label %{after}")
        self.begin(body)
        yield index
        self.do(f"{following} = add i64 {index}, 1")
        self.do(f"br label %{head}")
        phi = f"  {index} = phi i64 [0, %{before}], [{following}, %{self.block}]"
        self.lines.insert(place, phi)
        self.begin(after)

    def function(self, head: str) -> str:
        """The text of the function, whose first line, up to the brace, is `head`."""
        return "\n".join([f"define {head} {{", *self.lines, "}"])
