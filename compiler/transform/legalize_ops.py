"""LegalizeOps: operators become calls of tensor programs, which the module then holds.

What the printed module says is what runs: its programs can be edited as text or scheduled, read
back, and built. A fused group becomes one program. What only views memory under another shape stays
an operator, and so does what finds sizes, or chooses at run time between results that may have been
rounded.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.errors import UnsupportedError
from compiler.ir.draws import drawn
from compiler.ir.expr import Atom, Binding, Call, Function, IRModule, Value, Var, atom_type
from compiler.ir.function_calls import call_tir
from compiler.lowering.legalize import legalize
from compiler.op.opdef import OpDef
from compiler.passes.manager import ModulePass, PassContext
from compiler.passes.nested import through_nested
from compiler.target.intrinsics.emission import program_text
from compiler.tensor.stmt import PrimFunc
from compiler.types.names import unique


class LegalizeOps(ModulePass):
    """Turns every operator call, or primitive function, into a `call_tir` of its loop nest."""

    name = "LegalizeOps"
    required = ("InferType",)

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """The module with programs for its operators; equal loop nests share one."""
        programs = _Programs(mod)
        functions = {
            name: through_nested(f, programs.function)
            for name, f in mod.functions.items()
            if isinstance(f, Function)
        }
        return mod.with_functions({**functions, **programs.made})


class _Programs:
    def __init__(self, mod: IRModule):
        self.names = set(mod.functions)
        self.made: dict[str, PrimFunc] = {}
        self.by_text: dict[str, str] = {}

    def function(self, f: Function) -> Function:
        """`f` with calls of programs in the places of operators.

        Raises:
            UnsupportedError: there are random draws, which programs would not be given.
        """
        if drawn(f) is not None:
            raise UnsupportedError("LegalizeOps does not pass on random draws: build the module")
        bindings = [self.binding(b) for b in f.bindings]
        if all(a is b for a, b in zip(bindings, f.bindings, strict=True)):
            return f
        return f.with_body(bindings, f.results)

    def binding(self, b: Binding) -> Binding:
        """A binding of the same variable."""
        group = _group(b.value, b)
        if group is None:
            return b
        f, args = group
        legal = legalize(f)
        given = dict(zip(f.params, args, strict=True))
        atoms = [given[a] if isinstance(a, Var) else a for a in legal.inputs]
        return replace(b, value=call_tir(self.program(legal.func), atoms, atom_type(b.var)))

    def program(self, f: PrimFunc) -> str:
        """The name of a program like `f` in the module."""
        text = program_text(f)
        if text not in self.by_text:
            name = self.by_text[text] = unique(f.name, self.names)
            self.made[name] = replace(f, name=name)
        return self.by_text[text]


def _group(value: Value, b: Binding) -> tuple[Function, tuple[Atom, ...]] | None:
    """The primitive function that a value is, with its operands; None if it is none."""
    if not isinstance(value, Call):
        return None
    if isinstance(value.op, Function):
        ops = [x.value.op for x in value.op.bindings if isinstance(x.value, Call)]
        known = all(isinstance(op, OpDef) and _has_loops(op) for op in ops)
        return (value.op, value.args) if known else None
    if not isinstance(value.op, OpDef) or value.op.view or not _has_loops(value.op):
        return None
    names: set[str] = {b.var.name}
    params = {
        a: Var(unique(a.name, names), a.type)
        for a in dict.fromkeys(value.args)
        if isinstance(a, Var)
    }
    args = tuple(params[a] if isinstance(a, Var) else a for a in value.args)
    call = replace(value, args=args)
    inner = Function(tuple(params.values()), (Binding(b.var, call),), (b.var,))
    return inner, tuple(params)


def _has_loops(op: OpDef) -> bool:
    return not op.callee and not op.effect and not op.rounds and not op.second_if_rounded
