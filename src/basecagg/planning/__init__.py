"""Before a run: choose parameters, predict costs, turn a privacy budget into noise."""
