"""Stochastic bilevel optimization with one or very many lower-level problems, on JAX."""

from bilevax.algorithms import Algorithm, re_rsvrb, rsvrb, svrb
from bilevax.data import per_task, ragged, shared
from bilevax.problem import Bounds, Problem
from bilevax.schedule import Mixing, power

__all__ = ["Algorithm", "Bounds", "Mixing", "Problem", "per_task", "power", "ragged", "re_rsvrb", "rsvrb", "shared", "svrb"]
