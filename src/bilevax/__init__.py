"""Stochastic bilevel optimization with one or very many lower-level problems, on JAX."""

from bilevax import curvature, datasets, problems
from bilevax.algorithms.base import FACTS, Algorithm, Cost, Facts, Info, Variables, algorithms
from bilevax.algorithms.block_soba import block_soba as block_soba
from bilevax.algorithms.bsa import bsa as bsa
from bilevax.algorithms.bsvrb import bsvrb_v1 as bsvrb_v1
from bilevax.algorithms.bsvrb import bsvrb_v2 as bsvrb_v2
from bilevax.algorithms.ma_soba import ma_soba as ma_soba
from bilevax.algorithms.mrbo import mrbo as mrbo
from bilevax.algorithms.re_rsvrb import re_rsvrb as re_rsvrb
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
from bilevax.check import check
from bilevax.data import per_task, ragged, shared
from bilevax.metrics import exact_gradient, exact_metrics, exact_objective
from bilevax.problem import Problem
from bilevax.run import Result, solve
from bilevax.schedule import Mixing, power
from bilevax.trace import Trace

__version__ = "0.1.0"

__all__ = [
    *FACTS,
    "Algorithm",
    "Bounds",
    "Box",
    "Cost",
    "Facts",
    "Info",
    "Mixing",
    "Problem",
    "Result",
    "Trace",
    "Variables",
    "algorithms",
    "check",
    "curvature",
    "datasets",
    "exact_gradient",
    "exact_metrics",
    "exact_objective",
    "per_task",
    "power",
    "problems",
    "ragged",
    "shared",
    "solve",
]
