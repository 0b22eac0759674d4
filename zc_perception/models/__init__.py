"""Models that ship with the package, one folder each: ``model.yaml`` (the manifest), weights, measured figures."""
