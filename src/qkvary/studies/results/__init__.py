"""What runs show together: statistics, comparisons, fronts and the summary of a study."""
