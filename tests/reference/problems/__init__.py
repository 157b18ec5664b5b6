"""Small ready-made problems, for their own tests and for those of the algorithms."""
