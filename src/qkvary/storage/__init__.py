"""What survives? Durable writes, manifests, locks, journals, and the errors of files."""
