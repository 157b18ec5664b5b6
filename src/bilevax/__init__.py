"""Stochastic bilevel optimization with one or very many lower-level problems, on JAX."""

from bilevax import curvature, datasets, problems
from bilevax.algorithms.block_soba import block_soba as block_soba
from bilevax.algorithms.bsa import bsa as bsa
from bilevax.algorithms.bsvrb import bsvrb_v1 as bsvrb_v1
from bilevax.algorithms.bsvrb import bsvrb_v2 as bsvrb_v2
from bilevax.algorithms.contract import (
    DESCRIPTIONS,
    Algorithm,
    Cost,
    Facts,
    Info,
    Variables,
    described,
    list_algorithms,
)
from bilevax.algorithms.implicit import implicit as implicit
from bilevax.algorithms.ma_soba import ma_soba as ma_soba
from bilevax.algorithms.mrbo import mrbo as mrbo
from bilevax.algorithms.re_rsvrb import re_rsvrb as re_rsvrb
from bilevax.algorithms.registry.tuning import Tuning
from bilevax.algorithms.rsvrb import rsvrb as rsvrb
from bilevax.algorithms.saba import saba as saba
from bilevax.algorithms.soba import soba as soba
from bilevax.algorithms.srba import srba as srba
from bilevax.algorithms.stable import stable as stable
from bilevax.algorithms.stocbio import stocbio as stocbio
from bilevax.algorithms.sustain import sustain as sustain
from bilevax.algorithms.svrb import svrb as svrb
from bilevax.algorithms.ttsa import ttsa as ttsa
from bilevax.bounds import Bounds, Box
from bilevax.data import per_task, ragged, sampler, shared
from bilevax.diagnosis import check
from bilevax.exact.evaluation import (
    Exact,
    InexactWarning,
    exact_gradient,
    exact_objective,
    exact_values,
    lower_solution,
)
from bilevax.problem import Problem
from bilevax.programs import keep_programs
from bilevax.run.metrics import exact_metrics
from bilevax.run.result import Result
from bilevax.run.solve import solve
from bilevax.run.trace import Trace
from bilevax.run.watch import AssumptionWarning
from bilevax.scale.processes import connect
from bilevax.scale.split import shard
from bilevax.schedule import Mixing, power
from bilevax.trials import TuneResult
from bilevax.trials import tune as tune
from bilevax.version import VERSION

__version__ = VERSION
keep_programs()

__all__ = [
    *DESCRIPTIONS,
    "Algorithm",
    "AssumptionWarning",
    "Bounds",
    "Box",
    "Cost",
    "Exact",
    "Facts",
    "InexactWarning",
    "Info",
    "Mixing",
    "Problem",
    "Result",
    "Trace",
    "TuneResult",
    "Tuning",
    "Variables",
    "check",
    "connect",
    "curvature",
    "datasets",
    "described",
    "exact_gradient",
    "exact_metrics",
    "exact_objective",
    "exact_values",
    "list_algorithms",
    "lower_solution",
    "per_task",
    "power",
    "problems",
    "ragged",
    "sampler",
    "shard",
    "shared",
    "solve",
    "tune",
]
