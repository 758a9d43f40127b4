"""The poster of "Do Transformers Need Three Projections?"."""
