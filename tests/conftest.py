"""Strictness for all tests: float64, no silent promotion of types or ranks, shapes as annotated.

Tests compile thousands of small programs, so they ask XLA for quick compilation; `test_shows.py` says where something
is compiled as users would. What was compiled once lies in `.jax_cache/` for the other processes and the next time: a
program is found by all that it is made of, so a changed source finds nothing that is not its own.
"""

import functools
import gc
import itertools
import os
from pathlib import Path

QUICK_COMPILATION = (
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
)
os.environ.setdefault("XLA_FLAGS", QUICK_COMPILATION)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # boosted trees of several processes would wait for one another
CACHE = {
    "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parents[1] / ".jax_cache"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",  # what takes less is not worth a file
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
for name, value in CACHE.items():  # in the environment, for the processes that tests start
    os.environ.setdefault(name, value)

import jax  # noqa: E402
import pytest  # noqa: E402
import shapes  # noqa: E402

shapes.check_package("bilevax")

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2)  # for tests of shards; all others use the first one
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


gc.set_threshold(50_000, 20, 50)  # tracing makes many short-lived objects, and to look for cycles takes a tenth of it

MOST_MAPS = 30_000  # of the 65,530 that a process may have; every program takes some, and XLA crashes without
MAPS = Path("/proc/self/maps")
tests_run = itertools.count()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """The tests of a file run in one process, which compiles their programs once; those of `test_shows.py` in any."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            path = nodeid.partition("::")[0]
            return nodeid if path.endswith("test_shows.py") else path

    return ByFile(config, log)


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
