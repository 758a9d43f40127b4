"""How is it served? Prefill and steps, sampling, beams, and text as it comes."""
