"""The gateway: OpenAI-compatible HTTP in front of one decoding loop per generation."""
