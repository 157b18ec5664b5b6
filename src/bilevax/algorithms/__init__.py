"""One file for each algorithm; `base` is what they have in common."""

from bilevax.algorithms.base import Algorithm, Cost, Info, Variables
from bilevax.algorithms.bsvrb import bsvrb_v1, bsvrb_v2
from bilevax.algorithms.re_rsvrb import re_rsvrb
from bilevax.algorithms.rsvrb import rsvrb
from bilevax.algorithms.svrb import svrb

__all__ = ["Algorithm", "Cost", "Info", "Variables", "bsvrb_v1", "bsvrb_v2", "re_rsvrb", "rsvrb", "svrb"]
