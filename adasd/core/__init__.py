"""The algorithms of AdaSD: values in, values out (no I/O, no clock, no torch)."""
