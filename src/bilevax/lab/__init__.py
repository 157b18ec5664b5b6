"""The paper's experiments as data, tuned with the same effort for every method, stored run by run."""

from bilevax.lab.cases import Case
from bilevax.lab.contenders import Contender, find_contender
from bilevax.lab.runs import Interruption, conduct, read_package_tuning, tune_all
from bilevax.lab.specification import FIGURE1, FIGURE2, FIGURES, Experiment
from bilevax.lab.table1 import conduct_table1

__all__ = [
    "FIGURE1",
    "FIGURE2",
    "FIGURES",
    "Case",
    "Contender",
    "Experiment",
    "Interruption",
    "conduct",
    "conduct_table1",
    "find_contender",
    "read_package_tuning",
    "tune_all",
]
