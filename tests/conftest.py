"""Strictness for all tests: float64, no silent promotion of types or ranks.

Tests compile hundreds of small programs, so they ask XLA for quick compilation; what is shown to users
(`test_shows.py`) is compiled as users would.
"""

import os

QUICK_COMPILATION = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
os.environ.setdefault("XLA_FLAGS", QUICK_COMPILATION)

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
