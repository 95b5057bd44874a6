"""`r3 history`: look into the sample buffer of a run, and take samples out and in. One file per subcommand."""
