"""What can a person do? One file a verb: a function of ``qk`` that is a command too."""
