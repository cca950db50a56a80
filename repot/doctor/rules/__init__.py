"""The rules, a module for each kind of harm."""
