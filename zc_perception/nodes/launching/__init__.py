"""
What the launch files share: arguments, processes and components.

A parameter file is checked before anything starts.
"""
