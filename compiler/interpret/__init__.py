"""The oracle: graphs, loop nests and calls, walked in numpy."""
