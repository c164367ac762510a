"""Identifiers of generated C, one for each thing in scope."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from compiler.files.printable import printable


def comment(text: str) -> str:
    """A comment of one line, whatever names a model has."""
    inside = printable(text).replace("*/", "* /").replace("/*", "/ *")
    return f"/* {inside} */"


def unused(params: Iterable[str], body: Iterable[str]) -> list[str]:
    """A statement that mentions the parameters that a function's body does not, if there are any:
    what compilers would warn of."""
    used = set(re.findall(r"[A-Za-z_]\w*", "\n".join(body)))
    names = [re.split(r"\W", p)[-1] for p in params]
    left = [f"(void){n}" for n in names if n not in used]
    return textwrap.wrap(f"{', '.join(left)};", 98) if left else []


_WORDS = """auto break case char const continue default do double else enum extern float for goto if
inline int long register restrict return short signed sizeof static struct switch typedef union
unsigned void volatile while bool true false memcpy memset fabs fabsf sqrt sqrtf floor floorf ceil
ceilf nearbyint nearbyintf fma fmaf exp log tanh erf sin cos tan asin acos atan sinh cosh asinh
acosh atanh fmod pow main inputs outputs constants dims arena table begin end y0 y1 yn j0 j1 jn
gamma signgam index
alignas alignof and and_eq asm bitand bitor catch class co_await co_return co_yield compl concept
const_cast consteval constexpr constinit decltype delete dynamic_cast explicit export friend mutable
namespace new noexcept not not_eq nullptr operator or or_eq private protected public
reinterpret_cast requires static_assert static_cast template this thread_local throw try typeid
typename typeof using virtual xor xor_eq assert errno i386 linux near far unix"""
"""Words and names of C, of C++ and of their headers, macros of compilers, and names that every
function has."""


class Names:
    """Names that are taken, and what they stand for."""

    def __init__(self, more: Collection[str] = ()) -> None:
        self.taken: set[str] = {*_WORDS.split(), *more}

    def new(self, wish: str) -> str:
        """A name like `wish` that nothing else has, taken from now on."""
        stem = re.sub(r"\W", "_", wish, flags=re.ASCII) or "v"
        stem = stem if stem[0].isalpha() else f"v{stem}"
        stem = f"{stem}_" if len(stem) > 2 and stem.isupper() else stem  # headers have macros
        stem = f"{stem}_" if stem.endswith("_t") else stem  # headers have types
        # Helpers are called add_i32 and f32_of_f16: nothing else may look like that.
        stem = f"{stem}_" if re.search(r"_[fiub]\d+$", stem) else stem
        name, k = stem, 0
        while name in self.taken:
            k += 1
            name = f"{stem.rstrip('_')}_{k}"
        self.taken.add(name)
        return name

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names that are taken within are free again behind it."""
        before = set(self.taken)
        try:
            yield
        finally:
            self.taken = before
