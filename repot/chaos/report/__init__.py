"""Results as data, and as pages, tables and files."""
