"""
Starts two cameras whose frames are pairs, in namespaces left and right.

``ros2 launch zc_perception stereo.launch.py``.
"""

from launch import Action, LaunchDescription
from launch.actions import OpaqueFunction
from launch.launch_context import LaunchContext

from zc_perception.nodes.launching import arguments, processes


def start(context: LaunchContext) -> list[Action]:
    """Return the process, once the arguments are known."""
    chosen = arguments.Chosen(context)
    file = chosen.params_file()
    return processes.perception_program(chosen, file, stereo=True)


def generate_launch_description() -> LaunchDescription:
    """Return the arguments and the process."""
    return arguments.description(
        arguments.params_file('stereo.yaml'),
        *arguments.camera(),
        *arguments.common(overlay=False),
        *arguments.processes(),
        OpaqueFunction(function=start),
    )
