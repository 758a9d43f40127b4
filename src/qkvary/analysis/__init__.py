"""Why does it work? Similarity, rank, symmetry and forecasts of a network's weights and inputs."""
