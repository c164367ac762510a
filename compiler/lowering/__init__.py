"""From the graph to loop nests, and from custom datatypes to built-in ones."""
