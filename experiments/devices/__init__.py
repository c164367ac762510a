"""Devices: other machines that run what is compiled here, and say how long it took."""
