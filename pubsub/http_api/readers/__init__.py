"""The positions of readers, and the leases of their names."""
