"""Analysis: similarity, rank, symmetry and forecasts of a network's weights and inputs."""
