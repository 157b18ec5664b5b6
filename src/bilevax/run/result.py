"""Where a run ended, and all that is needed to go on."""

from dataclasses import dataclass, field
from typing import Any

from jaxtyping import PyTree

from bilevax.algorithms.contract import Cost
from bilevax.run.trace import Trace


@dataclass
class Result:
    """Where a run ended.

    - `x`, `y`: the iterate; x as the user's pytree, y with a leading axis m (none where m = 1).
    - `status`: "done" (a budget is used up), "target", "diverged" or "interrupted".
    - `steps`, `cost`, `seconds`: what it took; `message` says in words why it ended.
    - `trace`: what was recorded; `state`: all that is needed to go on (`solve(..., resume=result)`).
    - `origin`: what problem, algorithm and settings it comes from, as digests: another one does not resume it.
    """

    x: PyTree
    y: PyTree
    status: str
    message: str
    steps: int
    cost: Cost
    seconds: float
    trace: Trace
    state: Any
    seed: int
    origin: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        last = self.trace.rows[-1] if self.trace.rows else {}
        shown = "".join(f", {name}={last[name]:.6g}" for name in ("objective", "grad_norm") if name in last)
        return f"Result({self.status}: {self.message}; steps={self.steps}, seconds={self.seconds:.3g}{shown})"
