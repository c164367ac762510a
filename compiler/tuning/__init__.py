"""Tuning: register tiles measured on this machine, kept in a log that `build` applies."""
