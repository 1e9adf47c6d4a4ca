"""What must survive a crash: the stores behind the `Persist` effect."""
