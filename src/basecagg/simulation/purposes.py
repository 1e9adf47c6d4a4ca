"""Purposes of a run's random streams, each its own child of the seed."""

PARTITION, DEVICES, SCHEDULE, TRAINING, NOISE = range(5)
