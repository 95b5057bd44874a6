"""The tiny model and its world, for machines without a GPU."""
