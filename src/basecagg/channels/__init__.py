"""Bytes and keys: the wire format, who is who, and sealed shares."""
