"""`r3 study`: matched comparisons of methods, their parts and their baselines at equal tokens or turns."""
