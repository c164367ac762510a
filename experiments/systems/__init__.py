"""Number systems and schemes, and the networks that are put in them."""
