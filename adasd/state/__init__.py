"""What is stored: the session record and the Redis behind it."""
