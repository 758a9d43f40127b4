"""How well does a network know a text, how far does it carry, and what does it answer?"""
