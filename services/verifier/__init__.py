"""The verifier: the large model, deciding how many candidates stand."""
