"""The primitive that replaces loops by a hardware instruction."""

from __future__ import annotations

from compiler.errors import ScheduleError
from compiler.scheduling.loops import LoopPrimitives
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.stmt import For, Intrin, Store, walk_stmts


class TensorizePrimitives(LoopPrimitives):
    """tensorize."""

    def tensorize(self, stage: str, *intrins: Intrinsic) -> None:
        """Replace the innermost loops of `stage` by whichever of `intrins` has the same loop
        semantics.

        Raises:
            ScheduleError: none matches; says why for each.
        """
        found = [
            (s, path)
            for s, path, _ in walk_stmts(self.func.body)
            if isinstance(s, Store) and s.stage == stage
        ]
        if not found:
            raise ScheduleError(f"{self.func.name} has no stage {stage!r}")
        for s, path in found:
            reasons = []
            for it in intrins:
                why = self._try(s, path, it)
                if not why:
                    break
                reasons.append(f"{it.name}: {why}")
            else:
                raise ScheduleError(f"{stage} cannot be tensorized: {'; '.join(reasons)}")

    def _try(self, s: Store, path: tuple[For, ...], it: Intrinsic) -> str:
        k = len(it.loops)
        tile = path[-k:]
        if len(path) < k or any(len(f.body) != 1 for f in tile):
            return f"needs {k} perfectly nested loops"
        for f, (name, n) in zip(tile, it.loops.items(), strict=True):
            if f.extent.constant() != n:
                return f"loop {f.var} has extent {f.extent}, {name} needs {n}"
        variables = {n: f.var for n, f in zip(it.loops, tile, strict=True)}
        leaves = it.match(s, variables)
        if isinstance(leaves, str):
            return leaves
        home = path[-k - 1].body if len(path) > k else self.func.body
        self.swap(home, tile[0], [Intrin(it, s, variables, leaves)])
        return ""
