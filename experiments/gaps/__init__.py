"""How far simulation in float32 is from bit-exact execution, ingredient by ingredient."""
