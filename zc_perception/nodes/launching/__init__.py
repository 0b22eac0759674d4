"""What the launch files share: arguments; processes and components, whose parameter file is checked before anything starts."""
