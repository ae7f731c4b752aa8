"""A dissector for Wireshark, generated from the declarations of the protocols.

``declaration`` has the elements of a protocol's ``dissector.py``, ``generator`` makes the Lua file
of it; ``runtime/`` has the part of that file that is the same for all protocols.
"""
