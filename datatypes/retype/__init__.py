"""change_dtype: a module in another number format."""
