"""
Models that ship with the package.

Each has a folder: ``model.yaml`` (the manifest), weights, measured figures.
"""
