"""The tests; a package, so that benchmarks find `tests.reference` from the checkout."""
