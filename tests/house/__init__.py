"""The source tree and the documents: sizes, imports, names, messages, packages, links, tables."""
