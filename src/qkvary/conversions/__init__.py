"""What can a network become? Rewrites of a network into another that computes the same."""
