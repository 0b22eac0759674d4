"""What checks and measures the package from outside."""
