"""Text from decoders: which inputs and outputs they have, steps with a cache, choosing ids."""
