"""Pictures of graph functions as SVG: by graphviz where it is installed, else by our own layout."""

from compiler._lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "compiler.picture.boxes": ["Box", "Diagram", "diagram"],
        "compiler.picture.drawing": ["has_graphviz", "svg_text"],
        "compiler.picture.layered": ["layered_svg"],
    },
)
