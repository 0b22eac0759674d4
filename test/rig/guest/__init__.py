"""What runs inside the guest, with the standard library alone."""
