"""One HTML page, without a network, for the results of `bench serve`, `compare` and `sweep` and of the lab."""
