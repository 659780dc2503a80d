"""What drafter and verifier share: one model on one device thread, and the streams that work on it."""
