"""What fits in memory, and which variant to choose? Plans and advice from costs and quality."""
