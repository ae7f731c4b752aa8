"""The wire protocols, a folder each; ``twisted/plugins/`` registers them."""
