"""Strictness for all tests: float64, no silent promotion of types or ranks.

Tests compile hundreds of small programs, so they ask XLA for quick compilation; `test_shows.py` says where something
is compiled as users would.
"""

import functools
import os
from pathlib import Path

QUICK_COMPILATION = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
os.environ.setdefault("XLA_FLAGS", QUICK_COMPILATION)

DATA_BESIDE = Path(__file__).parents[2] / "shared" / "data"
if "BILEVAX_DATA" not in os.environ and DATA_BESIDE.is_dir():
    os.environ["BILEVAX_DATA"] = str(DATA_BESIDE)

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


MOST_MAPS = 30_000  # of the 65,530 that a process may have; every program takes some, and XLA crashes without


@pytest.fixture(autouse=True)
def forget_programs():
    """Compiled programs of earlier tests are dropped before they are too many for one process."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


@pytest.fixture(scope="session")
def paper_data():
    """Read one of the paper's data sets by its name; the test is skipped where they are not on this machine."""
    from bilevax import datasets

    missing = [name for name in datasets.REGISTRY if not datasets.is_here(name)]
    if missing:
        pytest.skip(f"no real data here: BILEVAX_DATA names no folder with {', '.join(missing)}")
    return functools.cache(datasets.load)
