"""How do variants compare? Studies, their runs and their results."""
