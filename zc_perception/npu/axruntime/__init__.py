"""Axelera's Voyager runtime, by its C interface."""
