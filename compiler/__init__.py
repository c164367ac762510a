"""The compiler core: import a trained ONNX model, transform it, compile it, run it."""

from compiler._lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "compiler.frontend": ["from_onnx"],
        "compiler.interpret": ["evaluate"],
        "compiler.iterations": ["limit_iterations"],
        "compiler.pipeline": ["build", "optimize"],
        "compiler.runtime.assumptions": ["Assumption", "assumptions"],
        "compiler.runtime.executable": ["Executable"],
        "compiler.saved.executables": ["load"],
        "compiler.executors": ["create_executor"],
        "compiler.codegen.jit": ["clear_cache"],
        "compiler.target": ["Target"],
        "compiler.dtypes": ["DType"],
        "compiler.ir.expr": [
            "Call", "Constant", "Function", "GlobalVar", "If", "IRModule", "Loop", "Match", "Tuple",
            "TupleGetItem", "Var",
        ],
        "compiler.ir.builder": ["FunctionBuilder"],
        "compiler.ir.construct": ["function"],
        "compiler.ir.expression": [
            "Expr", "call", "const", "global_var", "if_else", "make_tuple", "match", "var",
            "while_loop",
        ],
        "compiler.ir.types": ["FuncType", "TensorType", "TupleType"],
        "compiler.ir.verifier": ["verify"],
        "compiler.ir.parser": ["parse"],
        "compiler.ir.tokens": ["ParseError"],
        "compiler.ir.equal": ["structural_equal"],
        "compiler.transform.passes": ["PassContext", "Sequential"],
        "compiler.transform.decorators": ["function_pass", "module_pass"],
        "compiler.transform.instruments": ["PrintIR", "TimingInstrument", "VerifyInstrument"],
        "compiler.transform.functor": ["ExprMutator", "ExprVisitor"],
        "compiler.transform.layout_rules": ["OpLayout", "register_alter_op_layout"],
        "compiler.tensor.intrinsics": ["register_intrinsic"],
        "compiler.tensor.intrinsics.intrinsic": ["Intrinsic", "dot_product"],
        "compiler.tensor.schedule.written": ["schedule"],
        "compiler.tensor.schedule.rules": ["register_schedule_rule"],
        "compiler.runtime.external": ["register_func"],
        "compiler.tuning.log": ["apply_history_best"],
        "compiler.tuning.tuner": ["tune"],
        "compiler.errors": [
            "ConfigError", "DtypelabError", "InputError", "LoweringError", "ModelError",
            "ScheduleError", "TypeInferenceError", "UnsupportedError", "VerifyError",
        ],
    },
)  # fmt: skip
