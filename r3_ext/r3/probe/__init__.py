"""`r3 probe`: is it worth it for this model and these problems? Generation only; start reading in `command.py`."""
