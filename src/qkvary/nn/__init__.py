"""What does a network *compute*? One attention layer, its cache, blocks, and one network a file."""
