"""How updates are protected: not at all, by noise of their own, or by masks that cancel in the sum."""
