"""What a broker shows of itself: its state, and lists of what it has. Knows no HTTP."""
