"""The paper's experiments as data, tuned with the same effort for every method, stored run by run."""

from bilevax.experiments.cases import Case
from bilevax.experiments.methods import METHODS, Method
from bilevax.experiments.specification import FIGURE1, FIGURE2, FIGURES, Experiment
from bilevax.experiments.table1 import conduct_table1
from bilevax.experiments.work import Interrupted, conduct, shipped, tune_all

__all__ = [
    "FIGURE1",
    "FIGURE2",
    "FIGURES",
    "METHODS",
    "Case",
    "Experiment",
    "Interrupted",
    "Method",
    "conduct",
    "conduct_table1",
    "shipped",
    "tune_all",
]
