"""float16 on processors that cannot convert it: the functions that LLVM calls instead.

C compilers bring them in their run-time library, which a Python process need not have loaded.
Rounding is to nearest even; NaN stays NaN.
"""

from __future__ import annotations

SYMBOLS = ("__extendhfsf2", "__truncsfhf2")
"""Conversions from and to float16."""

TEXT = """
define float @__extendhfsf2(half %x) nounwind {
  %h = bitcast half %x to i16
  %w = zext i16 %h to i32
  %m = and i32 %w, 32767
  %high = and i32 %w, 32768
  %sign = shl i32 %high, 16
  %moved = shl i32 %m, 13
  %normal = add i32 %moved, 939524096
  %special = or i32 %moved, 2139095040
  %count = uitofp i32 %m to float
  %scaled = fmul float %count, 0x3E70000000000000
  %small = bitcast float %scaled to i32
  %is_special = icmp uge i32 %m, 31744
  %is_small = icmp ult i32 %m, 1024
  %large = select i1 %is_special, i32 %special, i32 %normal
  %size = select i1 %is_small, i32 %small, i32 %large
  %bits = or i32 %size, %sign
  %out = bitcast i32 %bits to float
  ret float %out
}

define half @__truncsfhf2(float %x) nounwind {
  %a = bitcast float %x to i32
  %size = and i32 %a, 2147483647
  %top = lshr i32 %a, 16
  %sign = and i32 %top, 32768
  %is_nan = icmp ugt i32 %size, 2139095040
  %is_over = icmp uge i32 %size, 1199566848
  %is_small = icmp ult i32 %size, 947912704
  %shifted = lshr i32 %size, 13
  %odd = and i32 %shifted, 1
  %up = add i32 %size, 4095
  %rounded = add i32 %up, %odd
  %rebased = sub i32 %rounded, 939524096
  %normal = lshr i32 %rebased, 13
  %value = bitcast i32 %size to float
  %at_half = fadd float %value, 5.0e-01
  %half_bits = bitcast float %at_half to i32
  %small = sub i32 %half_bits, 1056964608
  %payload = and i32 %shifted, 1023
  %nan = or i32 %payload, 32256
  %finite = select i1 %is_small, i32 %small, i32 %normal
  %bounded = select i1 %is_over, i32 31744, i32 %finite
  %all = select i1 %is_nan, i32 %nan, i32 %bounded
  %bits = or i32 %all, %sign
  %h = trunc i32 %bits to i16
  %out = bitcast i16 %h to half
  ret half %out
}
"""
