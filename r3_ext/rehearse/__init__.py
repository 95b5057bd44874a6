"""`r3 rehearse`: minutes of the real training, at its worst and as usual, before days of it."""
