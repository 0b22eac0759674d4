# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
Start console scripts: read options, import what the script needs, handle errors.

A script reads its options before it imports ROS, NumPy or OpenCV; ``--help`` and ``--version``
work without them. If a module is missing, the script prints one line that names the package to
install.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import contextlib
import importlib.util
import platform
import sys
import textwrap
from typing import Any, NoReturn, TYPE_CHECKING

import zc_perception
from zc_perception.errors import (
    ConfigError,
    error_line,
    EXIT_FAILURE,
    EXIT_USAGE,
    message_of,
    ZcError,
)
from zc_perception.shipped_files import shipped_file

if TYPE_CHECKING:
    from zc_perception.kinds import Kinds
from zc_perception.terminal import Interrupted, interruptions, put

_ROS_ARGS, _ROS_ARGS_END = '--ros-args', '--'
_WIDTH = 80
_UNKNOWN_HELP = (
    'what to do if -p NAME:=VALUE names no node, and no node of this package has a parameter '
    'NAME: end with an error (refuse, the default) or only warn (warn)'
)
_INSTALL = {
    'cv2': "install OpenCV: pip install 'opencv-python-headless<5', "
    'or on a ROS 2 machine: sudo apt install python3-opencv',
    'numpy': (
        'install NumPy: pip install numpy, or on a ROS 2 machine: sudo apt install python3-numpy'
    ),
    'yaml': (
        'install PyYAML: pip install PyYAML, or on a ROS 2 machine: sudo apt install python3-yaml'
    ),
}
_SET_UP_ROS = (
    "set ROS 2 up in this shell: source /opt/ros/<distro>/setup.bash; 'pip install' "
    'does not install ROS 2'
)
_ROS_SUFFIXES = ('_msgs', '_interfaces', '_srvs')
_ROS_MODULES = ('rclpy', 'rpyutils', 'ament_index_python')


class StrictParser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError for wrong arguments instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error as ConfigError."""
        raise ConfigError(f'{message}; see {self.prog} --help')


class OptionParser(StrictParser):
    """
    Parses the command-line options of one program.

    :param what: the program's purpose, for ``--help``.
    :param examples: command lines, for ``--help``.
    :param after: the text at the end of ``--help``.

    ``main`` is the group of the options that most users need; ``--help`` shows it first. ``more``
    is the group of the other options.
    """

    def __init__(
        self,
        prog: str,
        what: str,
        examples: Sequence[str],
        *,
        usage: str = '[options]',
        after: str = '',
    ) -> None:
        super().__init__(
            prog=prog,
            usage=f'{prog} {usage}',
            description='\n\n'.join(
                [
                    textwrap.fill(what, _WIDTH),
                    '\n'.join(['examples:', *(f'  {line}' for line in examples)]),
                ]
            ),
            epilog=textwrap.fill(after, _WIDTH),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=False,
        )
        self.main = self.add_argument_group('main options')
        self.more = self.add_argument_group('other options')
        self.more.add_argument('-h', '--help', action='help', help='show this help and end')
        self.more.add_argument(
            '--version',
            action='version',
            version=f'%(prog)s {zc_perception.__version__}',
            help='show the version and end',
        )

    def format_help(self) -> str:
        """Return the text of ``--help``, with the group ``more`` last."""
        self._action_groups.sort(key=lambda group: group is self.more)
        return super().format_help()

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments *words*; raise ConfigError for a wrong one."""
        return self.parse_args(words)


class NodeOptionParser(OptionParser):
    """
    Parses the options of a program that runs nodes; it ignores ROS arguments.

    :param parameters: name and purpose of each main parameter that ``--help`` lists.
    :param kinds: the kinds whose parameters ``--help`` lists. The key is the text that ``-p``
        needs before the name of a kind's parameter, such as ``capture:``.
    """

    def __init__(
        self,
        prog: str,
        what: str,
        examples: Sequence[str],
        parameters: Mapping[str, str],
        kinds: Mapping[str, Kinds[Any]],
    ) -> None:
        self._kinds = kinds
        super().__init__(
            prog,
            what,
            examples,
            usage='[options] [--ros-args -p NAME:=VALUE --params-file FILE ...]',
        )
        self.epilog = (  # not wrapped, so that users can copy the paths
            f'Description of all parameters: {shipped_file("docs/parameters.md")}\n'
            f'Parameter file with all defaults: {shipped_file("config/perception.yaml")}'
        )
        if parameters:
            wide = max(map(len, parameters))
            lines = (f'  {name:{wide}}  {purpose}' for name, purpose in parameters.items())
            self.description = '\n'.join(
                [str(self.description), '', 'main parameters (-p NAME:=VALUE):', *lines]
            )

    def format_help(self) -> str:
        """
        Return the text of ``--help``, with the parameters of each kind.

        This imports the kinds' modules. If an import fails, for example because NumPy is
        missing, the text lists only the kinds' names.
        """
        lines: list[str] = []
        for prefix, kinds in self._kinds.items():
            names = dict.fromkeys(kinds.names, '')
            with contextlib.suppress(ImportError):
                names = {
                    name: ', '.join(f'{prefix}{spec.name}' for spec in kind.PARAMETERS)
                    for name, kind in kinds.declared.classes.items()
                }
            wide = max(map(len, names))
            lines += ['', f'parameters of each kind of {kinds.noun}:']
            for name, own in names.items():
                indent = ' ' * (wide + 4)
                first = f'  {name:{wide}}  '
                filled = textwrap.fill(own, _WIDTH, initial_indent=first, subsequent_indent=indent)
                lines.append(filled or f'  {name}')
        self.description, kept = '\n'.join([str(self.description), *lines]), self.description
        try:
            return super().format_help()
        finally:
            self.description = kept

    def add_unknown_parameters(self) -> None:
        """Add ``--unknown-parameters``: what to do about unknown parameters of ``-p``."""
        self.more.add_argument(
            '--unknown-parameters',
            choices=('refuse', 'warn'),
            default='refuse',
            help=_UNKNOWN_HELP,
        )

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse *words* without their ROS arguments; raise ConfigError for a wrong argument."""
        options, leftover = self.parse_known_args(without_ros_args(words))
        if leftover:
            raise ConfigError(
                f"argument '{leftover[0]}' is unknown; set parameters by --ros-args -p "
                'NAME:=VALUE or --params-file FILE'
            )
        return options


def without_ros_args(words: Sequence[str]) -> list[str]:
    """Remove the ROS arguments, as ``rclpy.utilities.remove_ros_args`` does, but without rclpy."""
    own, ours = [], True
    for word in words:
        if word == _ROS_ARGS:
            ours = False
        elif ours:
            own.append(word)
        elif word == _ROS_ARGS_END:
            ours = True
    return own


def start(
    parser: OptionParser,
    run: Callable[[argparse.Namespace], int],
    words: Sequence[str] | None = None,
) -> int:
    """
    Parse the arguments, call *run* with the options, and return the program's exit code.

    A wrong argument or a missing module is printed as one line; the exit code is then 2.

    :param run: does the program's work and returns its exit code. It imports ROS, NumPy or OpenCV
        itself, so that ``--help`` works without them.
    :param words: the arguments; ``None``: those of the command line.
    """
    try:
        return run(parser.read(sys.argv[1:] if words is None else words))
    except ConfigError as error:
        put(error_line(parser.prog, error), sys.stderr)
    except ImportError as error:
        advice = _advice(error)
        if advice is None:
            raise
        put(error_line(parser.prog, ConfigError(advice)), sys.stderr)
    return EXIT_USAGE


def exit_code_of(command: str, work: Callable[[], int]) -> int:
    """
    Run *work* until it ends or a signal comes; return the program's exit code.

    The code is that of *work*; 2 after a ConfigError (wrong arguments, or the result can't be
    written), 1 after any other :exc:`ZcError`, and 128 + n after signal n.

    :param command: the program's name, which begins the line about an error or signal.
    """
    with interruptions() as interruption:
        try:
            with interruption.allowed():
                return work()
        except ZcError as error:
            put(error_line(command, error), sys.stderr)
            return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILURE
        except Interrupted as interrupted:
            put(f'{command}: ended by {interrupted}', sys.stderr)
            return interrupted.exit_code


def _advice(error: ImportError) -> str | None:
    """Return a message with the step to take; ``None``: the error is a bug of this package."""
    name = error.name or ''
    module = name.partition('.')[0]
    if not module or module == zc_perception.__name__:
        return None
    if not isinstance(error, ModuleNotFoundError) or _is_there(module):
        problem = (
            f"Python module '{module}' can't be loaded by Python "
            f'{platform.python_version()} ({message_of(error)})'
        )
    else:
        problem = f"Python module '{module}' is missing"
    return (
        f'{problem}; '
        f'{_INSTALL.get(module) or _of_ros(module) or f"install it for {sys.executable}"}'
    )


def _of_ros(module: str) -> str | None:
    if module in _ROS_MODULES or (module.endswith(_ROS_SUFFIXES) and not _is_there('rclpy')):
        return _SET_UP_ROS
    if module.endswith(_ROS_SUFFIXES):
        return (
            f'install the ROS 2 package: sudo apt install ros-<distro>-{module.replace("_", "-")}'
        )
    return None


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
