"""What torch.compile's options say: the number system of a graph, and how it gets there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from compiler.errors import ConfigError, UnsupportedError, unknown
from compiler.ir.expr import IRModule
from experiments.systems import number_systems, pipeline, schemes
from experiments.systems.schemes import Scheme

if TYPE_CHECKING:
    from quantize.plan.plan import Plan

NAMES = ("accumulate", "backward", "dtype", "plan", "scheme", "target", "threads")
TORCH = "torch"
"""The value of `backward` for which torch runs backward graphs."""


@dataclass(frozen=True)
class Options:
    """Options of one torch.compile.

    Attributes:
        scheme: a number system by a sweep's name of it.
        backward: that of backward graphs, a format; "": as `scheme`; "torch": torch runs them.
        plan: what realizes a quantized graph instead; None: `scheme` does.
        target: see `compiler.build`.
        threads: of compiled code; 0: as many as torch uses.
    """

    scheme: Scheme
    backward: str = ""
    plan: Plan | None = None
    target: str = "llvm"
    threads: int = 0

    @staticmethod
    def of(given: Mapping[str, Any] | None) -> Options:
        """The options of a mapping.

        Raises:
            ConfigError: there is none of a name, two exclude each other, or a value does not fit.
        """
        options = dict(given or {})
        for name in options:
            if name not in NAMES:
                raise ConfigError(unknown("option of the backend dtypelab", str(name), NAMES))
        systems = [name for name in ("dtype", "plan", "scheme") if options.get(name) is not None]
        if len(systems) > 1:
            raise ConfigError(f"the options {' and '.join(systems)} exclude each other: give one")
        more = {"accumulate": options["accumulate"]} if "accumulate" in options else {}
        if "plan" in systems and more:
            raise ConfigError("a plan says itself how sums are formed: leave out accumulate")
        name = str(options[systems[0]]) if systems and "plan" not in systems else "float32"
        threads = options.get("threads", 0)
        if not isinstance(threads, int) or threads < 0:
            raise ConfigError(f"threads={threads!r} is not a number of threads")
        found = Options(
            schemes.parse(name, more), str(options.get("backward", "")),
            _plan(options.get("plan")), str(options.get("target", "llvm")), threads,
        )  # fmt: skip
        backward = found.of_backward()
        if found.backward and backward is not None and backward.scheme.calibrated:
            raise ConfigError(
                f"backward={found.backward!r} would be calibrated: give a format, float32 or torch"
            )
        return found

    def check_trained(self) -> None:
        """Refuse what needs constants where gradients are wanted, and parameters are inputs.

        Raises:
            UnsupportedError: it is calibrated, or a plan.
        """
        if self.plan is not None or self.scheme.calibrated:
            what = "a plan" if self.plan is not None else f"the scheme {self.scheme.label!r}"
            raise UnsupportedError(
                f"{what} quantizes weights that are constants, and where gradients are wanted they "
                "are inputs: call the module within torch.no_grad(), or give a format as dtype"
            )

    def of_backward(self) -> Options | None:
        """The options of backward graphs, whose sums are formed as those of forward graphs; None:
        torch runs them.

        Raises:
            ConfigError: there is no such format.
        """
        if self.backward == TORCH:
            return None
        if not self.backward:
            return self
        more = {k: v for k, v in self.scheme.options if k == "accumulate"}
        scheme = schemes.parse(self.backward, {} if self.backward == "float32" else more)
        return replace(self, scheme=scheme, backward="", plan=None)

    def applied(self, module: IRModule, inputs: Sequence[Any]) -> IRModule:
        """The module in its number system. A calibrated scheme is calibrated on `inputs`, arrays
        of one call.

        Raises:
            DtypelabError: the module cannot be put in it.
        """
        import quantize

        if self.plan is not None:
            return quantize.realize(module, self.plan)
        if not self.scheme.calibrated:
            return pipeline.retype(module, self.scheme)
        names = module.attrs["inputs"]
        config = number_systems.qconfig(dict(self.scheme.options))
        return quantize.quantize(module, [dict(zip(names, inputs, strict=True))], config)


def _plan(given: Any) -> Plan | None:
    """A plan, or the one of a JSON file."""
    from quantize.plan.plan import Plan

    return given if given is None or isinstance(given, Plan) else Plan.from_json(given)
