"""A user's agent: it trains, contributes and holds shares, and it calls out only."""
