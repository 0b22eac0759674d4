"""Recordings as cameras."""
