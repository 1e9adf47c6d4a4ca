"""The server: HTTP in front, one machine behind, its mailboxes and its records."""
