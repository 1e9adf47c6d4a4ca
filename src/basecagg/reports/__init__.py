"""Runs made visible: plots, and a report that opens anywhere."""
