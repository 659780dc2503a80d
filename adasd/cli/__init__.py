"""The `adasd` command."""
