"""The options of the source and the sink, and the topics, regions and columns they name."""
