"""The dissector for Wireshark: tshark against the broker's decoders, on captures made here."""
