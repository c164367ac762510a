"""Labelled data, and arrays for networks with any number of inputs."""
