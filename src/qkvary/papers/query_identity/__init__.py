"""The paper "[Key,Value] is probably all you need" (query identity, 2025)."""
