"""`r3 doctor`: what would otherwise fail minutes into a run, checked before Ray starts. One file per subject."""
