"""The measuring instrument: what to run in which order, how to ask, and tables, plots and timelines of the answers."""
