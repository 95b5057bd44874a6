"""`python -m r3_ext.export NAME DEST`: a recipe, with what it needs of recipe/common and its tests, for verl-recipe."""
