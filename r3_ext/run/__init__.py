"""`r3 run` and `r3 resume`."""
