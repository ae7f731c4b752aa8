"""The figures and events by which a broker is observed."""
