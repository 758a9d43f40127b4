"""Plans what fits in memory, and advises which variant to choose, from costs and quality."""
