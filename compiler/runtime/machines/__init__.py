"""Machines that programs for other architectures run on here: WebAssembly engines, emulators, an
interpreter of PTX."""
