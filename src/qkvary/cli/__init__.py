"""What does a person type? One file per command, imported when it is called."""
