"""The compiler core: import a trained ONNX model, transform it, compile it, run it."""

from typing import TYPE_CHECKING

from compiler._lazy import lazy
from compiler.boundary import homes as _homes
from compiler.passes import pipeline as _pipeline

if TYPE_CHECKING:  # the function, not the module of its name
    from compiler.build import build as build

_pipeline.comes_from("compiler.stages")
for _part in ("regions", "sizes", "found"):
    _homes.FUNCTIONS.comes_with(f"onnxruntime.{_part}", "compiler.frontend.foreign.session")
for _name, _part in {
    "accel": "accelerator",
    "onednn": "onednn.engine",
    "onnxruntime": "onnx_runtime",
}.items():
    _homes.ENGINES.comes_with(_name, f"compiler.engines.{_part}")

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "compiler.frontend": ["from_onnx"],
        "compiler.frontend.torch": ["from_fx", "from_torch"],
        "compiler.interpret.graph": ["evaluate"],
        "compiler.interpret.iterations": ["limit_iterations"],
        "compiler.build": ["build", "optimize", "partition"],
        "compiler.boundary.assumptions": ["Assumption", "assumptions"],
        "compiler.runtime.executable": ["Executable"],
        "compiler.saved.decoders": ["load_decoder"],
        "compiler.saved.executables": ["load"],
        "compiler.decoding.session": ["decoder"],
        "compiler.exporting.export": ["Exported", "export"],
        "compiler.exporting.page": ["Pictures", "export_page"],
        "compiler.executors": ["create_executor"],
        "compiler.codegen.llvm.jit": ["clear_cache"],
        "compiler.target.registry": ["Target"],
        "compiler.types.dtypes": ["DType"],
        "compiler.ir.expr": [
            "Call", "Cases", "Constant", "Construct", "Function", "GlobalVar", "If", "IRModule",
            "Loop", "Match", "Tuple", "TupleGetItem", "Var",
        ],
        "compiler.ir.builder": ["FunctionBuilder"],
        "compiler.ir.construct": ["function"],
        "compiler.ir.expression": [
            "Expr", "call", "cases", "const", "construct", "global_var", "if_else", "make_tuple",
            "match", "var", "while_loop",
        ],
        "compiler.types.tensor_types": [
            "DataType", "FuncType", "TensorType", "TupleType", "TypeVar",
        ],
        "compiler.types.data": ["Constructor", "TypeDef"],
        "compiler.boundary.data": ["Datum"],
        "compiler.ir.verifier": ["verify"],
        "compiler.ir.parser": ["parse"],
        "compiler.ir.prelude": ["prelude"],
        "compiler.types.tokens": ["ParseError"],
        "compiler.ir.equal": ["structural_equal"],
        "compiler.passes.manager": ["PassContext", "Sequential"],
        "compiler.passes.decorators": ["function_pass", "module_pass"],
        "compiler.passes.instruments": ["PrintIR", "TimingInstrument", "VerifyInstrument"],
        "compiler.passes.functor": ["ExprMutator", "ExprVisitor"],
        "compiler.transform.gradient": ["gradient"],
        "compiler.transform.losses": ["with_loss"],
        "compiler.transform.batch_statistics": ["with_batch_statistics"],
        "compiler.transform.parameters": ["as_parameters", "parameters"],
        "compiler.transform.layout_rules": ["OpLayout", "register_alter_op_layout"],
        "compiler.target.intrinsics": ["register_intrinsic"],
        "compiler.tensor.intrinsic": ["Intrinsic", "dot_product"],
        "compiler.scheduling.user_schedules": ["schedule"],
        "compiler.scheduling.rules": ["register_schedule_rule"],
        "compiler.boundary.external": ["register_func"],
        "compiler.devices": [
            "Device", "on_device", "place", "plan_devices", "register_device",
        ],
        "compiler.pattern.tables": ["CompositePattern"],
        "compiler.engines.engine": ["Engine", "register_engine"],
        "compiler.ir.handed": ["handed"],
        "compiler.scheduling.tuning_log": ["apply_history_best"],
        "compiler.tuning.tuner": ["tune"],
        "compiler.tuning.network": ["choose_network"],
        "compiler.errors": [
            "ConfigError", "DtypelabError", "InputError", "LoweringError", "ModelError",
            "ScheduleError", "TypeInferenceError", "UnsupportedError", "VerifyError",
        ],
    },
)  # fmt: skip
