"""
Stand-ins for libraries and kernel interfaces that a test machine lacks.

Each is written from the document that its header names.
"""
