"""What does a person look at? Pages, tables, charts and exports."""
