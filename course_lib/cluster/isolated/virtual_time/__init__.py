"""Time on isolated ranks that stands still while a rank computes."""
