"""The backplane: what several brokers share through an engine that is distributed itself."""
