"""The two parties of an epoch, its server and a member of it, as every driver uses them."""
