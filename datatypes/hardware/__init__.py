"""Number formats as circuits: Verilog written from their descriptions, and what it costs."""
