"""Models shipped with the package, one folder each (data only)."""
