"""The programs: one folder a service."""
