"""The drafter: the small model, answering with candidate blocks."""
