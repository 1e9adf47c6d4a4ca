"""Bytes and keys: the wire format, signatures, sealed envelopes."""
