"""From data to the parameters of a plan."""
