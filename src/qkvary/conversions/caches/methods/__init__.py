"""One module per method, which chooses a layer's new form and computes its weights."""
