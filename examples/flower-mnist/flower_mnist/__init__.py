"""Handwritten digits, learned by a Flower federation that never sees one user's update."""
