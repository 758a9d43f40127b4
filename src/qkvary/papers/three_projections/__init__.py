"""Derivations of the published figures from the cost model, one file per paper."""
