"""Tasks: data, network, loss and metrics; one file per task."""
