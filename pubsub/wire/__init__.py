"""The kit every protocol is built with: frame fields, buffers, connections, listeners."""
