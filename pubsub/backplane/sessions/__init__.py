"""Sessions that another broker can resume."""
