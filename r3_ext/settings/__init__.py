"""The settings of a run: composed, chosen for the machine, prepared."""
