"""The version of the library: here and nowhere else."""

VERSION = "0.1.0"
