"""A plan becomes a program: in integers, or simulated in float32."""
