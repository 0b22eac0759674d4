"""Where a calibration is kept: URLs as camera_info_manager has them, reading, and writing for ``set_camera_info``.

Source: camera_info_manager's documentation: ``file://`` and ``package://`` URLs, variables ``${NAME}`` and ``${ROS_HOME}``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from zc_perception.camera.calibration import MAX_BYTES, Calibration, check_calibration, format_calibration, parse_calibration, uncalibrated
from zc_perception.errors import ConfigError
from zc_perception.whole_file import write_whole

DEFAULT_URL = 'file://${ROS_HOME}/camera_info/${NAME}.yaml'
PackageFolder = Callable[[str], 'str | os.PathLike[str]']
"""The share folder of a ROS package by its name; raises LookupError for one that isn't installed."""
_VARIABLES = ('NAME', 'ROS_HOME')


def camera_name_of(text: str) -> str:
    """*text* as a camera's name in file names and calibrations: letters, digits and underscores; 'camera' for none."""
    return re.sub(r'\W+', '_', text, flags=re.ASCII).strip('_') or 'camera'


def ros_home(environment: Mapping[str, str] = os.environ) -> Path:
    """``$ROS_HOME``, by default ``~/.ros``."""
    named = environment.get('ROS_HOME', '')
    return Path(named) if named else Path(environment.get('HOME') or os.path.expanduser('~')) / '.ros'


def calibration_path(
    url: str, camera_name: str, *, package_folder: PackageFolder | None = None, environment: Mapping[str, str] = os.environ
) -> Path:
    """The file that a ``camera_info_url`` names.

    :param url: ``file:///path``, ``package://package/path`` or a bare absolute path; empty for :data:`DEFAULT_URL`.
    :param camera_name: for ``${NAME}``.
    :raises ConfigError: another scheme, an unknown variable or package, a path that isn't absolute or leaves its package.
    """
    given = url or DEFAULT_URL
    resolved = _substitute(given, camera_name, environment)
    scheme, separator, rest = resolved.partition('://')
    if not separator:
        scheme, rest = 'file', resolved
    if scheme.lower() == 'file':
        if not rest.startswith('/'):
            raise ConfigError(f"parameter 'camera_info_url' is '{given}'; a file URL has an absolute path: file:///folder/camera.yaml")
        return Path(rest)
    if scheme.lower() != 'package':
        raise ConfigError(f"parameter 'camera_info_url' is '{given}'; it must begin with file:// or package://")
    package, _, path = rest.partition('/')
    if not package or not path:
        raise ConfigError(f"parameter 'camera_info_url' is '{given}'; a package URL is package://PACKAGE/path/in/its/share.yaml")
    if package_folder is None:
        raise ConfigError(f"parameter 'camera_info_url' is '{given}'; packages can't be looked up here, use file://")
    try:
        folder = Path(package_folder(package))
    except LookupError as error:
        raise ConfigError(f"parameter 'camera_info_url' is '{given}'; there is no ROS package '{package}' in this environment") from error
    if '..' in Path(path).parts:
        raise ConfigError(f"parameter 'camera_info_url' is '{given}'; its path must stay in the package, without '..'")
    return folder / path


def _substitute(url: str, camera_name: str, environment: Mapping[str, str]) -> str:
    values = {'NAME': camera_name.replace('/', '_'), 'ROS_HOME': str(ros_home(environment))}

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            allowed = ', '.join(f'${{{name}}}' for name in _VARIABLES)
            raise ConfigError(f"parameter 'camera_info_url' is '{url}': variable '{match[0]}' is unknown; known are {allowed}")
        return values[match[1]]

    return re.sub(r'\$\{([^}]*)\}', value, url)


def load_calibration(path: Path) -> Calibration:
    """Read a file.

    :raises FileNotFoundError: there is none; not an error for a camera that has yet to be calibrated.
    :raises ConfigError: it can't be read, or isn't a calibration.
    """
    try:
        if path.exists() and not path.is_file():
            # To open a pipe would wait for its writer, and no signal ends that.
            raise ConfigError(f"calibration '{path}' is no file; set 'camera_info_url' to one that camera_calibration has written")
        with path.open('rb') as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode('utf-8')
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"calibration '{path}' can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"calibration '{path}' is no text in UTF-8 ({error.reason} at byte {error.start})") from error
    return parse_calibration(text, str(path))


def save_calibration(path: Path, calibration: Calibration) -> None:
    """Write a file, whole or not at all, and the folders that it needs. A link is followed, so that it stays one.

    :raises ConfigError: it isn't a calibration, or can't be written; the file that was there is as it was.
    """
    check_calibration(calibration, str(path))
    try:
        Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, format_calibration(calibration))
    except OSError as error:
        raise ConfigError(f"calibration '{path}' can't be written: {error.strerror}; set 'camera_info_url' to another place") from error


class CameraInfoStore:
    """A camera's calibration, where it is kept, and what its user should know of it.

    :param url: see :func:`calibration_path`.
    :param camera_name: see :func:`camera_name_of`.
    :param size: what the running camera gives, in pixels.
    :raises ConfigError: the URL or the file can't be used. A missing file is no error.
    """

    def __init__(
        self, url: str, camera_name: str, size: tuple[int, int], *, package_folder: PackageFolder | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:  # fmt: skip
        self.path = calibration_path(url, camera_name, package_folder=package_folder, environment=environment)
        self.camera_name = camera_name
        self._named = bool(url)
        self._size = size
        self.calibration = uncalibrated(*size)
        self._missing = False
        try:
            self.calibration = load_calibration(self.path)
        except FileNotFoundError:
            self._missing = True

    def resize(self, width: int, height: int) -> None:
        """The camera gives another size now."""
        self._size = (width, height)
        if not self.calibration.calibrated:
            self.calibration = uncalibrated(width, height)

    @property
    def current(self) -> Calibration:
        """What to publish: zeros and the camera's size where the calibration is of another size, for nobody can compute with that."""
        if self.calibration.calibrated and self._mismatch() is None:
            return self.calibration
        return uncalibrated(*self._size)

    def _mismatch(self) -> str | None:
        """See :meth:`Calibration.size_mismatch`. Before the camera is open nobody knows."""
        return self.calibration.size_mismatch(*self._size, str(self.path)) if any(self._size) else None

    @property
    def wrong(self) -> bool:
        """Whether the troubles are more than that nobody has calibrated the camera: a file was named that isn't there, or doesn't fit."""
        return (self._missing and self._named) or (self.calibration.calibrated and bool(self.troubles))

    @property
    def troubles(self) -> tuple[tuple[str, str], ...]:
        """What is, and what to do about it: no file, another size, another name, unknown keys. Frames go on in any case."""
        if self._missing:
            return ((f"the camera is not calibrated: there is no '{self.path}'", "run camera_calibration, or set 'camera_info_url'"),)
        found = [(notice, 'correct the file') for notice in self.calibration.notices]
        if not self.calibration.calibrated:
            text = f"calibration '{self.path}' has a camera matrix of zeros: the camera counts as not calibrated"
            return (*found, (text, 'run camera_calibration'))
        mismatch = self._mismatch()
        if mismatch:
            found.append((mismatch, "calibrate at this size, run the camera at that one, or set 'camera_info_url' to one that fits"))
        other = self.calibration.camera_name
        if other not in ('', 'unknown', self.camera_name):
            text = f"calibration '{self.path}' is of a camera named '{other}', this one is '{self.camera_name}'"
            found.append((text, "set 'camera_name', or 'camera_info_url' to its own"))
        return tuple(found)

    @property
    def notices(self) -> tuple[str, ...]:
        """:attr:`troubles` as sentences for the log."""
        return tuple(f'{text}; {step}' for text, step in self.troubles)

    def replace(self, calibration: Calibration) -> None:
        """Keep a new calibration, as ``set_camera_info`` asks: written first, used from then on.

        :raises ConfigError: it can't be used or written; the old one stays.
        """
        save_calibration(self.path, calibration)
        self.calibration, self._missing = calibration, False
