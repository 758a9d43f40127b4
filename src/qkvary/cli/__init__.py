"""What does a person type? The app made of the verbs."""
