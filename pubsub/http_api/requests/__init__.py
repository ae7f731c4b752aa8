"""A request from its target to its answer: parameters, body, access, errors, limits."""
