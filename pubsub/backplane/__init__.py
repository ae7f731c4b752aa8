"""The backplane: state that several brokers share through a distributed engine."""
