"""What travels between the services: generated stubs, codec, status table, server shell."""
