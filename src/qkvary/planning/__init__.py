"""What fits, and which variant to choose? Plans and advice from costs and published quality."""
