"""Every persistent form of a quantized weight: read, decode, convert and verify, bit for bit."""
