"""The state of a broker, and lists of its objects, for operators. Knows no HTTP."""
