"""A standing attack on the library; `python -m benchmarks.attack` runs it, see `__main__.py`."""
