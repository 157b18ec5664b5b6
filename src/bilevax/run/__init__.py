"""One run: what was asked for, the loop, what was recorded, and what a terminal shows of it."""
