"""How do variants compare? Studies, runs, records, statistics and reports."""
