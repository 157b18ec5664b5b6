"""Tables with labels that may be wrong: a weight and a rank of suspicion for each row, a model, and a page."""

from bilevax.cleaning.work import clean_table

__all__ = ["clean_table"]
