"""How each published figure follows from the cost model: one file per paper."""
