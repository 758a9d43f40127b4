"""The paper "Do Transformers Need Three Projections?" (Kayyam et al. 2026)."""
