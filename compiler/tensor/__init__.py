"""The tensor level: scalar expressions, buffers, loop nests (PrimFunc), schedules, intrinsics."""
