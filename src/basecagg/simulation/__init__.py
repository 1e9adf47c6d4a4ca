"""Whole federations in one process: the same machines as on a network, with a loopback between them."""
