"""Accumulators of published hardware, by name: what one unit adds at once, and how.

They are models of the inner sums, from measurements that others published; none was compared with
the hardware here. In all of them a group of exact products and the accumulator are shifted to the
largest of their exponents, cut off, added exactly, and truncated once. What the sources leave open
(in which order an instruction takes groups of a longer sum) is in sequence here.

Sources: [F] M. Fasi, N. Higham, M. Mikaitis, S. Pranesh, "Numerical behavior of NVIDIA tensor
cores", PeerJ Computer Science 7:e330 (2021); [L] X. Li et al., "FTTN: Feature-targeted testing for
numerical properties of NVIDIA and AMD matrix accelerators", arXiv 2403.00232; [K] F. Khattak, M.
Mikaitis, "Accurate models of NVIDIA tensor cores", arXiv 2512.07004; [D] DeepSeek-V3 technical
report, section 3.5.2, and deepseek-ai/DeepGEMM, threads 37, 50 and 176; [S] SageAttention2, as
quoted in thu-ml/SageAttention, thread 287.
"""

from __future__ import annotations

from compiler.op.accumulator import Accumulator


def _core(
    bits: int, group: int, held: str = "float32", chunk: int = 0, outer: str = ""
) -> Accumulator:
    return Accumulator(held, chunk, outer, rounding="truncate", align_bits=bits, group=group)


PRESETS: dict[str, Accumulator] = {
    # [F] four products at a time, no bit beyond float32's 24, truncated.
    "v100_fp16": _core(24, 4),
    # [F], [L] eight products, one bit more.
    "a100_fp16": _core(25, 8),
    # [L], [K] sixteen products, two bits more.
    "h100_fp16": _core(26, 16),
    # [D] the highest 14 bits of 32 products; [S] kept with 13 bits behind the point.
    "h100_fp8": _core(14, 32, "float22_e8m13"),
    # [D] (thread 50) the same, and every 128 products a sum in float32, rounded to nearest.
    "h100_fp8_promoted": _core(14, 32, "float22_e8m13", 128, "float32"),
    # [D] (thread 176) 25 bits behind the point, where it counts 13 of the H100's; [K].
    "b200_fp8": _core(26, 32),
}
"""Name -> accumulator."""
