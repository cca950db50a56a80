"""The command line: parse, call one function, show. It holds no decision."""
