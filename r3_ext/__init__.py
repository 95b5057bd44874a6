"""What surrounds the recipes: the CPU platform, the run launcher, doctor and tools. Recipes never import it."""
