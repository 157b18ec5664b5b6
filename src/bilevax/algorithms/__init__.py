"""One file for each algorithm, and one line in `bilevax/__init__.py`; `contract`, `frame` and `start` are for all."""
