"""How is it decoded? Prefill and steps, sampling, beams, evaluation and the decode benchmark."""
