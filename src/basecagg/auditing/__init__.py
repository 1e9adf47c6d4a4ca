"""After a run: what the server could learn from its transcript, and whether it did its work honestly."""
