"""Grammars over a tokenizer's vocabulary, by llguidance: the only package that knows it."""
