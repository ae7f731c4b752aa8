"""The listeners of a broker: their settings, quotas and limits."""
