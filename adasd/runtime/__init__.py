"""Models behind one small Protocol."""
