"""The cheapest formats for a network: one for every layer, with the results still good enough."""
