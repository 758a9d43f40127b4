"""The methods of conversion; each module chooses a layer's new form and computes its weights."""
