"""A dissector for Wireshark, generated from what the protocols declare.

``declaration`` has what a protocol's ``dissector.py`` consists of, ``generator`` makes the Lua file
of it; ``runtime/`` has the part of that file that is the same for all protocols.
"""
