"""Proofs that compiled code computes in a number format what the format's description means.

`integers` and `rational` are the judges, `softposit_peer` and `ml_dtypes_peer` other people's
implementations, `subject` the compiled kernels on trial; `checking` runs every property.
"""

from datatypes.proof.checking import Progress, check_format
from datatypes.proof.report import Counterexample, Report, Row

__all__ = ["Counterexample", "Progress", "Report", "Row", "check_format"]
