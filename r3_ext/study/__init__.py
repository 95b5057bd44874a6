"""`r3 study`: matched comparisons of R^3, its parts and its baselines at equal generated tokens."""
