"""When updates meet: in rounds (FedAvg), one by one (FedAsync), K at a time (FedBuff), by tiers (FedAT)."""
