"""Lower problems solved to high accuracy; F and its gradient from them, and how exact they are."""
