"""Proofs that compiled code computes in a number format what the description means."""
