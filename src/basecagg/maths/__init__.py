"""Exact arithmetic, without state: the field, the code, rounding, staleness, randomness."""
