"""`r3 eval`: one evaluator for every model. Start reading in `command.py`."""


class EvaluationError(Exception):
    """What a user can put right; its text is the whole message."""
