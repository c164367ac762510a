"""Accumulators of published hardware, by name: what one unit adds at once, and how.

They are models of the inner sums, from measurements that others published. In all of them a group
of exact products and the accumulator are shifted to the largest of their exponents, cut off, added
exactly, and truncated once. A factor (or sum) below its format's least normal number has the
exponent of that number.

Sources, and what is from where:

- [F] M. Fasi, N. Higham, M. Mikaitis, S. Pranesh, "Numerical behavior of NVIDIA tensor cores",
  PeerJ Computer Science 7:e330 (2021): V100 and A100, their groups, bits beyond float32's and
  truncation.
- [L] X. Li et al., "FTTN: Feature-targeted testing for numerical properties of NVIDIA and AMD
  matrix accelerators", arXiv 2403.00232: that A100 and H100 keep bits beyond float32's 24.
- [K] F. Khattak, M. Mikaitis, "Accurate models of NVIDIA tensor cores", arXiv 2512.07004, and their
  models, north-numerical-computing/MATLAB-tensor-core (V100TC, A100TC, L40STC, H100TC, B200TC),
  which they compared with the hardware on random vectors: group and bits beyond float32's 24 are 4
  and 0 (V100), 8 and 1 (A100), 16 and 2 (H100, B200) in float16; 16 and -10 (L40S), 32 and -10
  (H100), 32 and 2 (B200) in 8 bits. Sums are truncated. Exponents of subnormal numbers are from
  their Generic_BFMA_TC.
- [X] P. Xie et al., "MMA-Sim: bit-accurate reference model of tensor cores and matrix cores", arXiv
  2511.10909, and microsoft/MMA-Sim: the same numbers, counted as bits behind the point (23, 24, 25;
  13 and 25), and the same exponents; that what the H100 and Ada (the L40S) add up in fp8 is kept
  with 13 bits behind the point, and that Ada splits 32 products into two groups.
- [D] DeepSeek-V3 technical report, section 3.5.2, and deepseek-ai/DeepGEMM, threads 37, 50 and 176:
  the highest 14 bits of 32 products, in registers of 22 bits, every 128 of them in float32.
- [S] SageAttention2, as quoted in thu-ml/SageAttention, thread 287: the same 22 bits.

Of the vectors that [K] measured and publish (model_validation in their repository, commit b12b5a7;
5000 a file, sums in float32), the models here give every bit: V100, A100, L40S, H100 and B200 in
float16, A100, H100 and B200 in bfloat16, L40S and H100 in both 8-bit floats. Those of the B200 in 8
bits are, as far as they were looked at, whole sums rounded to nearest: not what its model in [K]
and [X] says, which `b200_fp8` follows.

What the sources leave open is a choice here: groups of a longer sum follow each other in sequence,
as in [K]'s models. What differs from [K]: there no group is aligned to less than 2**-133 (A100 and
L40S: 2**-132), which only products of bfloat16 reach; and sums out of float32's range. `h100_fp8`
is of the instructions of a warpgroup: by [X], the older ones of the H100 keep 25 bits behind the
point.
"""

from __future__ import annotations

from compiler.op.accumulator import Accumulator


def _core(
    bits: int, group: int, held: str = "float32", chunk: int = 0, outer: str = ""
) -> Accumulator:
    return Accumulator(held, chunk, outer, rounding="truncate", align_bits=bits, group=group)


PRESETS: dict[str, Accumulator] = {
    # [F], [K], [X] four products at a time, no bit beyond float32's 24, truncated.
    "v100_fp16": _core(24, 4),
    # [F], [L], [K], [X] eight products, one bit more.
    "a100_fp16": _core(25, 8),
    # [L], [K], [X] sixteen products, two bits more.
    "h100_fp16": _core(26, 16),
    # [K], [X] the same.
    "b200_fp16": _core(26, 16),
    # [K], [X] sixteen products, the highest 14 bits, kept with 13 behind the point.
    "l40s_fp8": _core(14, 16, "float22_e8m13"),
    # [D], [K], [X] the highest 14 bits of 32 products; [S], [X] kept with 13 behind the point.
    "h100_fp8": _core(14, 32, "float22_e8m13"),
    # [D] the same, and every 128 products a sum in float32, rounded to nearest.
    "h100_fp8_promoted": _core(14, 32, "float22_e8m13", 128, "float32"),
    # [K], [X], [D] (thread 176) 25 bits behind the point, where the H100 has 13.
    "b200_fp8": _core(26, 32),
}
"""Name -> accumulator."""
