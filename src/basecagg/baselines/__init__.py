"""Other protections to compare with: SecAgg and SecAgg+, and noise that users add to their own updates."""
