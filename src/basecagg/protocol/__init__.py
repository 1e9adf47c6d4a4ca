"""The protocol as machines without IO: a message goes in, effects come out."""
