"""Measured side by side, in one run: our kernels, a peer's code, and what the machine can do at best."""
