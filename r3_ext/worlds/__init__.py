"""Worlds of text for agents: small games made with TextWorld, lists of them, and walks of an expert."""
