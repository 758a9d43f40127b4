"""What is stored? Networks, training states, and what others wrote, read and converted."""
