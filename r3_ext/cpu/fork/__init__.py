"""One loaded process whose forks are the processes of a run."""
