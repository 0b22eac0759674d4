"""Says in plain words what is wrong with ROS arguments that rcl refuses: its own message names lines of its C source."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence

from zc_perception.errors import ConfigError
from zc_perception.nodes.parameter_yaml import read_parameter_yaml

_SOURCE_LINE = re.compile(r', at \S+:\d+')
_PREFIX = re.compile(r'^(Failed to parse ROS arguments|failed to initialize rcl): ', re.IGNORECASE)
_RULE = re.compile(r"Couldn't parse (parameter override|remap) rule: '(.*?)'\.")
_FORMS = {'parameter override': '-p NAME:=VALUE, or -p NODE:NAME:=VALUE', 'remap': '-r FROM:=TO'}


def explain_ros_arguments(arguments: Sequence[str], error: Exception) -> ConfigError:
    """The error to raise for what rclpy said of a command line.

    :param arguments: the command line, ROS arguments included.
    :param error: rclpy has several classes for this, which differ between its versions.
    """
    for flag, path in itertools.pairwise(arguments):
        # Only what can be read again: a pipe is empty after rcl has read it.
        if flag == '--params-file' and (os.path.isfile(path) or not os.path.exists(path)):
            try:
                read_parameter_yaml(path)
            except ConfigError as problem:
                return problem
    text = _PREFIX.sub('', _SOURCE_LINE.sub('', ' '.join(str(error).split())))
    rule = _RULE.search(text)
    if rule is not None:
        text = f"'{rule[2]}' can't be read; write {_FORMS[rule[1]]}"
    elif 'Unknown' in type(error).__name__:
        text = f'unknown: {text}; leave them out'
    return ConfigError(f'ROS arguments: {text}')
