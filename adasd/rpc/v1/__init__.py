"""Version 1 of the wire protocol (generated from proto/adasd/rpc/v1)."""
