"""Before and after a run: choose parameters, predict costs, audit what the server could learn."""
