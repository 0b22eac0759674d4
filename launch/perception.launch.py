"""Camera, inference and overlay in one process: ``ros2 launch zc_perception perception.launch.py``."""

import os

from ament_index_python.packages import get_package_share_directory
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.launch_context import LaunchContext
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchDescription

DEFAULT_PARAMETERS = os.path.join(get_package_share_directory('zc_perception'), 'config', 'perception.yaml')
FROM_FILE = 'from_file'


def start(context: LaunchContext) -> list[Node]:
    """The process, once the arguments are known."""
    parameters = os.path.expanduser(LaunchConfiguration('params_file').perform(context))
    if not os.path.isfile(parameters):
        # launch_ros itself only warns and starts with defaults, which on a vehicle is the wrong camera.
        raise RuntimeError(f"params_file '{parameters}' does not exist or is not a file; start from '{DEFAULT_PARAMETERS}'")
    camera = LaunchConfiguration('camera').perform(context)
    chosen = [] if camera == FROM_FILE else [{'camera': camera}]
    video = LaunchConfiguration('video').perform(context)
    cameras = LaunchConfiguration('cameras').perform(context).replace(',', ' ').split()
    names = ['--cameras', *cameras] if cameras else []
    names += ['--stereo'] if LaunchConfiguration('stereo').perform(context) == 'true' else []
    chosen += [{'video': os.path.expanduser(video)}] if video else []
    return [
        Node(
            package='zc_perception',
            executable='perception',
            namespace=LaunchConfiguration('namespace'),
            parameters=[parameters, *chosen],
            arguments=[*names, '--ros-args', '--log-level', LaunchConfiguration('log_level')],
            output='screen',
        )
    ]


def generate_launch_description() -> LaunchDescription:
    """Arguments and the process."""
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                'params_file',
                default_value=DEFAULT_PARAMETERS,
                description='YAML with the parameters of capture, inference and overlay. A file that does not exist is an error.',
            ),
            DeclareLaunchArgument(
                'camera',
                default_value=FROM_FILE,
                choices=[FROM_FILE, 'synthetic', 'replay', 'v4l2', 'gstreamer', 'argus', 'libcamera'],
                description='Kind of camera; from_file: as the parameter file says.',
            ),
            DeclareLaunchArgument(
                'video', default_value='', description='Video file for camera:=replay; empty: as the parameter file says.'
            ),
            DeclareLaunchArgument(
                'cameras',
                default_value='',
                description='Several cameras in this process, such as front,rear: each has its nodes in the namespace of its name.',
            ),
            DeclareLaunchArgument(
                'stereo',
                default_value='false',
                choices=['true', 'false'],
                description='Two cameras whose frames are pairs, with their nodes in the namespaces left and right; not with cameras.',
            ),
            DeclareLaunchArgument('namespace', default_value='', description='Namespace of all nodes and topics, such as front.'),
            DeclareLaunchArgument(
                'log_level',
                default_value='info',
                choices=['debug', 'info', 'warn', 'error', 'fatal'],
                description='Least severe message shown.',
            ),
            OpaqueFunction(function=start),
        ]
    )
