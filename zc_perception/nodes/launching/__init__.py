"""What the launch files share: parameter files, read and checked before anything starts; arguments; processes and components.

Only ``parameter_file`` can be imported without launch_ros.
"""
