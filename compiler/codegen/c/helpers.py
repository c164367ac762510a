"""Helper functions of generated C, by name. A program gets those that its text names.

Integers wrap around without undefined behaviour: they are computed as unsigned numbers, and shifts
go by the lower bits of their count. Only `fma` is fused; maxima and minima know NaN and the sign of
zero. Helpers of float16 take and give codes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from compiler.arithmetic.scalar_functions import FUNCTIONS
from compiler.codegen.c.types import FLOAT16, SHORT, c_type, short_name, unsigned_type
from compiler.types.dtypes import FLOAT32, DType

LIBRARY = {name: f.c for name, f in FUNCTIONS.items() if f.c and not f.llvm}
"""Functions -> those of the C library that programs call, in double."""
ROUNDED = {name: f.c for name, f in FUNCTIONS.items() if f.c and f.llvm}
"""Functions whose result in every float is the right one -> C's, in double."""
_WRAPPING = {"add": "+", "sub": "-", "mul": "*"}

_FIXED = {
    "least_i64": """static inline int64_t least_i64(int64_t a, int64_t b) {
  return a < b ? a : b;
}""",
    "most_i64": """static inline int64_t most_i64(int64_t a, int64_t b) {
  return a > b ? a : b;
}""",
    "floor_div_i64": """static inline int64_t floor_div_i64(int64_t a, int64_t b) {
  return a / b - (a % b < 0); /* b > 0 */
}""",
    "floor_mod_i64": """static inline int64_t floor_mod_i64(int64_t a, int64_t b) {
  return a % b < 0 ? a % b + b : a % b; /* b > 0 */
}""",
    "f32_of_f16": """static inline float f32_of_f16(uint16_t x) {
  uint32_t size = x & 0x7fffu, sign = (uint32_t)(x & 0x8000u) << 16;
  if (size >= 0x7c00u) return f32_bits_u32(sign | 0x7f800000u | size << 13);
  if (size < 0x400u) return f32_bits_u32(sign | u32_bits_f32((float)size * 0x1p-24f));
  return f32_bits_u32(sign | ((size << 13) + 0x38000000u));
}""",
    # To nearest even: below the normal numbers by an addition that rounds there, else in integers.
    "f16_of_f32": """static inline uint16_t f16_of_f32(float x) {
  uint32_t bits = u32_bits_f32(x), size = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
  if (size > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
  if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
  if (size < 0x38800000u)
    return (uint16_t)(sign | (u32_bits_f32(f32_bits_u32(size) + 0.5f) - 0x3f000000u));
  return (uint16_t)(sign | (size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13);
}""",
    # By way of a float rounded to odd, which can be rounded again (Boldo and Melquiond, 2008).
    "f16_of_f64": """static inline uint16_t f16_of_f64(double x) {
  float near = (float)x;
  uint32_t bits = u32_bits_f32(near);
  if (x == x && (double)near != x && !(bits & 1u)) bits += fabs((double)near) < fabs(x) ? 1u : -1u;
  return f16_of_f32(f32_bits_u32(bits));
}""",
    # Products of bytes fit in 16 bits; sums of pairs come from both halves of 32. Compilers with
    # vectors of their own make no such code of the loops.
    "dot4_i32": """#if (defined(__SSE2__) || defined(__ARM_NEON)) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector) && __has_builtin(__builtin_convertvector)
#define VECTORS (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
#endif
#endif
#if defined(VECTORS) && VECTORS
typedef int8_t i8x8 __attribute__((vector_size(8)));
typedef int16_t i16x8 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef uint64_t u64x2 __attribute__((vector_size(16)));
#endif
/* c[o] += sum of a[i] * b[4 * o + i], o and i < 4 */
static inline void dot4_i32(int32_t *c, const uint8_t *a, const int8_t *b) {
#if defined(VECTORS) && VECTORS
  uint64_t each = a[0] | (uint64_t)a[1] << 16 | (uint64_t)a[2] << 32 | (uint64_t)a[3] << 48;
  i16x8 x = (i16x8)(u64x2){each, each};
  i8x8 low, high;
  memcpy(&low, b, 8);
  memcpy(&high, b + 8, 8);
  i32x4 p = (i32x4)(x * __builtin_convertvector(low, i16x8));
  i32x4 q = (i32x4)(x * __builtin_convertvector(high, i16x8));
  p = ((i32x4)((u32x4)p << 16) >> 16) + (p >> 16);
  q = ((i32x4)((u32x4)q << 16) >> 16) + (q >> 16);
  u32x4 sum;
  memcpy(&sum, c, 16);
  sum += (u32x4)__builtin_shufflevector(p, q, 0, 2, 4, 6);
  sum += (u32x4)__builtin_shufflevector(p, q, 1, 3, 5, 7);
  memcpy(c, &sum, 16);
#else
  for (int o = 0; o < 4; ++o) {
    int32_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += a[i] * b[4 * o + i];
    c[o] = (int32_t)((uint32_t)c[o] + (uint32_t)sum);
  }
#endif
}""",
    # What no int32_t is gives the least one, as x86 says.
    "rint_f32": """static inline int32_t rint_f32(float x) {
  return x >= -0x1p31f && x < 0x1p31f ? (int32_t)nearbyintf(x) : INT32_MIN;
}""",
    "rint_f64": """static inline int32_t rint_f64(double x) {
  double y = nearbyint(x);
  return y >= -0x1p31 && y < 0x1p31 ? (int32_t)y : INT32_MIN;
}""",
}


def prelude(text: str, more: Callable[[str], str | None] = lambda name: None) -> list[str]:
    """The helpers that C `text` names, and those that these name, callees first. `more` defines
    others, and goes first."""
    out: dict[str, str] = {}

    def add(name: str) -> None:
        definition = None if name in out else more(name) or helper(name)
        if definition is None:
            return
        for called in sorted(set(_named(definition)) - {name}):
            add(called)
        out[name] = definition

    for name in sorted(set(_named(text))):
        add(name)
    return list(out.values())


def _named(text: str) -> list[str]:
    return re.findall(r"\b\w+_[fiub]\d+(?=\()|\bf\d+_inf(?=\()|\blibrary_\w+(?=\()", text)


@functools.cache
def helper(name: str) -> str | None:
    """The definition of a helper; None if there is none of that name."""
    if name in _FIXED:
        return _FIXED[name]
    words = name.split("_")
    if len(words) == 3 and words[0] in SHORT and words[2] in SHORT:
        to, source = SHORT[words[0]], SHORT[words[2]]
        if words[1] == "bits":
            return _bits(to, source)
        return _conversion(to, source) if words[1] == "of" else None
    if words == ["f32", "inf"]:
        return "static inline float f32_inf(void) {\n  return f32_bits_u32(0x7f800000u);\n}"
    if words == ["f64", "inf"]:
        body = "f64_bits_u64(UINT64_C(0x7ff0000000000000))"
        return f"static inline double f64_inf(void) {{\n  return {body};\n}}"
    library = name.removeprefix("library_")
    if library != name and library in LIBRARY:
        types = ", ".join(["double"] * FUNCTIONS[library].arity)
        # Volatile: compilers compute functions of constants, better in the last bit.
        return f"static double (*const volatile {name})({types}) = {LIBRARY[library]};"
    fn, _, short = name.rpartition("_")
    if short in SHORT:
        dtype = SHORT[short]
        return _of_floats(fn, dtype) if dtype.is_float else _of_integers(fn, dtype)
    return None


def _defined(result: DType, name: str, params: str, dtype: DType, body: str) -> str:
    given = ", ".join(f"{c_type(dtype)} {p}" for p in params)
    lines = "\n".join(f"  {line}" for line in body.splitlines())
    return f"static inline {c_type(result)} {name}({given}) {{\n{lines}\n}}"


def _bits(to: DType, source: DType) -> str:
    name = f"{short_name(to)}_bits_{short_name(source)}"
    body = f"{c_type(to)} y;\nmemcpy(&y, &x, sizeof y);\nreturn y;"
    return _defined(to, name, "x", source, body)


def _conversion(to: DType, source: DType) -> str | None:
    """Conversions that are no casts of C: to integers from floats, which go toward zero and
    saturate, with 0 for NaN; to and from float16."""
    name = f"{short_name(to)}_of_{short_name(source)}"
    if source == FLOAT16:
        inner = "f32_of_f16(x)"
        body = f"{short_name(to)}_of_f32({inner})" if to.is_integer else f"({c_type(to)}){inner}"
        return _defined(to, name, "x", source, f"return {body};")
    if to == FLOAT16:
        return _defined(to, name, "x", source, "return f16_of_f32((float)x);")
    if not source.is_float or not to.is_integer:
        return None
    suffix, bits = "f" if source == FLOAT32 else "", to.bits - (to.kind == "int")
    least = f"INT{to.bits}_MIN" if to.kind == "int" else "0"
    most = f"{'' if to.kind == 'int' else 'U'}INT{to.bits}_MAX"
    low = f"-0x1p{bits}{suffix}" if to.kind == "int" else f"0.0{suffix}"
    body = f"""if (x != x) return 0;
if (x <= {low}) return {least};
return x >= 0x1p{bits}{suffix} ? {most} : ({c_type(to)})x;"""
    return _defined(to, name, "x", source, body)


def _of_floats(fn: str, dtype: DType) -> str | None:
    short, t = short_name(dtype), c_type(dtype)
    name, suffix = f"{fn}_{short}", "f" if dtype == FLOAT32 else ""
    params = {
        "max": "ab",
        "min": "ab",
        "fma": "abc",
        "limit": "xm",
        "atleast": "xm",
        "atmost": "xm",
    }
    given = params.get(fn, "ab" if fn in ("add", "sub", "mul", "div") else "x")
    given = "xy"[: FUNCTIONS[fn].arity] if fn in FUNCTIONS else given
    if dtype == FLOAT16 and fn != "abs":
        return _of_halves(fn, name, given)
    if fn in ("max", "min"):  # NaN if one is NaN; +0 is larger than -0
        first, signed = ("a > b", "b") if fn == "max" else ("a < b", "a")
        body = f"""if (a != a || b != b) return a + b;
if (a == b) return u{dtype.bits}_bits_{short}({signed}) >> {dtype.bits - 1} ? a : b;
return {first} ? a : b;"""
        return _defined(dtype, name, given, dtype, body)
    if fn in ("atleast", "atmost"):  # the same with a constant, neither NaN nor -0
        body = f"return x {'<=' if fn == 'atleast' else '>'} m ? m : x;"
        return _defined(dtype, name, given, dtype, body)
    if fn == "limit":
        return _defined(dtype, name, given, dtype, "return x > m ? m : x < -m ? -m : x;")
    if fn == "abs" and dtype == FLOAT16:
        return _defined(dtype, name, given, dtype, f"return ({t})(x & 0x7fffu);")
    if fn in ROUNDED or fn == "fma":
        called = f"{ROUNDED.get(fn, fn)}{suffix}({', '.join(given)})"
        return _defined(dtype, name, given, dtype, f"return {called};")
    if fn in LIBRARY:  # in double, rounded once
        return _defined(dtype, name, given, dtype, f"return ({t})library_{fn}({', '.join(given)});")
    return None


def _of_halves(fn: str, name: str, given: str) -> str | None:
    """Through float, in which operations of two float16 are right when they are rounded again; the
    C library's functions in double."""
    wide = [f"f32_of_f16({p})" for p in given]
    symbol = {"add": "+", "sub": "-", "mul": "*", "div": "/"}.get(fn)
    if symbol:
        value = f"f16_of_f32({wide[0]} {symbol} {wide[1]})"
    elif fn in LIBRARY:
        value = f"f16_of_f64(library_{fn}({', '.join(wide)}))"
    elif fn in (*ROUNDED, "max", "min", "fma", "limit"):
        value = f"f16_of_f32({fn}_f32({', '.join(wide)}))"
    else:
        return None
    return _defined(FLOAT16, name, given, FLOAT16, f"return {value};")


def _of_integers(fn: str, dtype: DType) -> str | None:
    t, u, signed = c_type(dtype), unsigned_type(dtype), dtype.kind == "int"
    name, given = f"{fn}_{short_name(dtype)}", "x" if fn == "abs" else "ab"
    if fn in _WRAPPING:
        body = f"return ({t})(({u})a {_WRAPPING[fn]} ({u})b);"
    elif fn in ("shl", "shr"):
        by = f"(b & {dtype.bits - 1})"
        body = f"return ({t})(({u})a << {by});" if fn == "shl" else f"return ({t})(a >> {by});"
    elif fn in ("max", "min"):
        body = f"return a {'>' if fn == 'max' else '<'} b ? a : b;"
    elif fn == "div":  # toward zero; by zero 0, and the least number by -1 wraps
        wraps = f"if (b == -1) return ({t})(0 - ({u})a);\n" if signed else ""
        body = f"{wraps}return b == 0 ? 0 : ({t})(a / b);"
    elif fn == "abs" and signed:
        body = f"return x < 0 ? ({t})(0 - ({u})x) : x;"
    else:
        return None
    return _defined(dtype, name, given, dtype, body)
