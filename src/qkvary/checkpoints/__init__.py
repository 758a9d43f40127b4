"""What is stored? Durable files, manifests and training states."""
