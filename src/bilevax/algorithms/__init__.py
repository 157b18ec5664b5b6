"""One file for each algorithm, and one line in `bilevax/__init__.py`; `base` is what they have in common."""
