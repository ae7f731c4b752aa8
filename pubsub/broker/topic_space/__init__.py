"""The topics of a broker: their names, their registry, and the state that is kept of each."""
