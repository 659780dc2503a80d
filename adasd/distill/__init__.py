"""Makes a draft model for a target that has none: the target's own answers, and a small student trained on them."""
