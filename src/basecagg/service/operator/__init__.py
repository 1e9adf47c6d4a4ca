"""The operator: admits people, signs epochs, and exports the model."""
