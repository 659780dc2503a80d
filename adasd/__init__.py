"""AdaSD: adaptive speculative decoding (arXiv 2512.11280), as a library."""

__version__ = "0.1.0"
