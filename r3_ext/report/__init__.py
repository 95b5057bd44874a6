"""`r3 report`: one self-contained HTML page and PNG figures from the metrics.jsonl of one or several runs."""
