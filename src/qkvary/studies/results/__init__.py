"""Results of a study: statistics, comparisons, frontiers and the summary."""
