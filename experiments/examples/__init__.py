"""Short programs that show how to extend dtypelab."""
