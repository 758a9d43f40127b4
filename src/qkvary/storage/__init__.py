"""Storage: durable writes, manifests, locks, journals, and errors with exit codes."""
