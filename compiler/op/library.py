"""Imports every file of this folder, each of which registers its operators."""

from importlib import import_module
from pkgutil import walk_packages

import compiler.op

for _module in walk_packages(compiler.op.__path__, "compiler.op."):
    import_module(_module.name)
