"""Readers of LIBSVM files, tables and Parquet, and the paper's data by name."""

from bilevax.datasets.dataset import Dataset
from bilevax.datasets.libsvm import read_libsvm
from bilevax.datasets.parquet import open_parquet
from bilevax.datasets.registry import REGISTRY, Entry, is_here, load
from bilevax.datasets.table import read_csv

__all__ = ["REGISTRY", "Dataset", "Entry", "is_here", "load", "open_parquet", "read_csv", "read_libsvm"]
