"""Strictness for all tests: float64, no silent promotion of types or ranks, shapes as annotated.

Tests compile thousands of small programs, so they ask XLA for quick compilation; `test_shows.py` says where something
is compiled as users would. What was compiled once lies in `.jax_cache/` for the other processes and the next time: a
program is found by all that it is made of, so a changed source finds nothing that is not its own.
"""

import functools
import itertools
import os
from pathlib import Path

QUICK_COMPILATION = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
os.environ.setdefault("XLA_FLAGS", QUICK_COMPILATION)
CACHE = {
    "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parents[1] / ".jax_cache"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
for name, value in CACHE.items():  # in the environment, for the processes that tests start
    os.environ.setdefault(name, value)

import jax  # noqa: E402
import pytest  # noqa: E402
import shapes  # noqa: E402

shapes.check_package("bilevax")

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


MOST_MAPS = 30_000  # of the 65,530 that a process may have; every program takes some, and XLA crashes without
MAPS = Path("/proc/self/maps")
tests_run = itertools.count()


@pytest.fixture(autouse=True)
def forget_programs():
    """Compiled programs of earlier tests are dropped before they are too many; counting them takes its time, too."""
    yield
    if next(tests_run) % 10 == 0 and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


@pytest.fixture(scope="session")
def paper_data():
    """Read one of the paper's data sets by its name; the test is skipped where they are not on this machine."""
    from bilevax import datasets

    missing = [name for name in datasets.REGISTRY if not datasets.is_here(name)]
    if missing:
        pytest.skip(f"no real data here: BILEVAX_DATA names no folder with {', '.join(missing)}")
    return functools.cache(datasets.load)
