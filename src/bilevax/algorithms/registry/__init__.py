"""How algorithms are described: their parameters in words, how they are tuned, and those from outside the package."""
