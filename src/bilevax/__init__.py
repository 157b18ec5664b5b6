"""Stochastic bilevel optimization with one or very many lower-level problems, on JAX."""

from bilevax import curvature, problems
from bilevax.algorithms import Algorithm, Cost, Info, Variables, bsvrb_v1, bsvrb_v2, re_rsvrb, rsvrb, svrb
from bilevax.check import check
from bilevax.data import per_task, ragged, shared
from bilevax.metrics import exact_gradient, exact_metrics, exact_objective
from bilevax.problem import Bounds, Problem
from bilevax.run import Result, solve
from bilevax.schedule import Mixing, power
from bilevax.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Bounds",
    "Cost",
    "Info",
    "Mixing",
    "Problem",
    "Result",
    "Trace",
    "Variables",
    "bsvrb_v1",
    "bsvrb_v2",
    "check",
    "curvature",
    "exact_gradient",
    "exact_metrics",
    "exact_objective",
    "per_task",
    "power",
    "problems",
    "ragged",
    "re_rsvrb",
    "rsvrb",
    "shared",
    "solve",
    "svrb",
]
