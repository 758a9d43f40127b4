"""Published figures and claims with verdicts: a folder per paper, and ``ours`` for our studies."""
