"""The machine or the cluster: it knows no run."""
