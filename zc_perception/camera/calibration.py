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
A camera's calibration: the values that describe its lens, and the YAML file that stores them.

Sources: sensor_msgs/CameraInfo for the values' meaning; camera_calibration_parsers and
camera_calibration's calibrator for the file. Files of different programs differ: they may have
numbers such as ``0.`` or ``1e-05`` (a YAML 1.1 parser reads ``1e-05`` as text), matrices over
several lines, names that look like numbers, or OpenCV's header ``%YAML:1.0`` and tag
``!!opencv-matrix``. So this module reads every scalar as text and converts it to the field's type.

A URL names the file, in the same forms as for camera_info_manager: ``file://`` and ``package://``,
with the variables ``${NAME}`` and ``${ROS_HOME}``. :class:`CameraInfoStore` reads the file, and
writes it for ``set_camera_info``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
import math
import os
from pathlib import Path
import re
from typing import Any

import numpy as np
import yaml

from zc_perception.errors import ConfigError, message_of, nearest, shown
from zc_perception.whole_file import write_whole

MAX_BYTES = 1 << 20
MAX_SIDE = 65535
DISTORTION_COEFFICIENTS: Mapping[str, tuple[int, ...]] = {
    'plumb_bob': (4, 5),
    'rational_polynomial': (8, 12, 14),
    'equidistant': (4,),
}
"""
For each distortion model, the allowed numbers of coefficients.

plumb_bob has 5, or 4 if k3 is left out. rational_polynomial has 8, or 12 with the thin prism terms
of OpenCV, or 14 if these are followed by the tilt terms.
"""
_OTHER_NAMES = {'fisheye': 'equidistant'}
"""
Key: a calibration file's name for a distortion model; value: CameraInfo's name for the same model.

camera_calibration of ROS 2 Foxy and Galactic writes the key instead of the value.
"""

_MATRICES = {
    'camera_matrix': ('k', 3, 3),
    'distortion_coefficients': ('d', 1, 0),
    'rectification_matrix': ('r', 3, 3),
    'projection_matrix': ('p', 3, 4),
}
_REQUIRED = ('image_width', 'image_height', *_MATRICES)
_KNOWN = (*_REQUIRED, 'camera_name', 'distortion_model', 'binning_x', 'binning_y', 'roi')
_MODEL_KEYS = ('camera_model', 'fisheye_model')
_ROI = ('x_offset', 'y_offset', 'width', 'height')
# Numbers that C++'s streams and YAML 1.2 accept. Python's float() would also accept '1_0' and
# digits of other scripts.
_NUMBER = re.compile(r'[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?', re.ASCII)
_INTEGER = re.compile(r'[-+]?\d+', re.ASCII)
_OPENCV_HEADER = re.compile(r'\A%YAML:1\.0\s*\n')
_INI_SECTION = re.compile(r'^\s*\[image\]\s*$', re.MULTILINE)
_XML = re.compile(r'\A\s*<')
_KALIBR = re.compile(r'cam\d+', re.ASCII)


@dataclass(frozen=True)
class RegionOfInterest:
    """The part of the sensor that the picture shows; all values zero: the whole sensor."""

    x_offset: int = 0
    y_offset: int = 0
    width: int = 0
    height: int = 0
    do_rectify: bool = False


@dataclass(frozen=True)
class Calibration:
    """
    The values of ``sensor_msgs/CameraInfo``, without its header.

    Matrices are row-major tuples.

    :param width: width of the picture in pixels, before binning and cropping.
    :param height: height of the picture in pixels, before binning and cropping.
    :param k: camera matrix, 3×3, pixels; ``k[0] == 0`` means uncalibrated, as in CameraInfo.
    :param d: distortion coefficients, as many as the model has.
    :param r: rectification matrix, 3×3.
    :param p: projection matrix, 3×4. For the right camera of a stereo pair, ``p[3]`` is ``-p[0]``
        times the baseline in metres.
    :param notices: sentences for the user about the calibration's file; they aren't saved in it.
    """

    width: int
    height: int
    camera_name: str = ''
    distortion_model: str = 'plumb_bob'
    d: tuple[float, ...] = ()
    k: tuple[float, ...] = (0.0,) * 9
    r: tuple[float, ...] = (0.0,) * 9
    p: tuple[float, ...] = (0.0,) * 12
    binning_x: int = 0
    binning_y: int = 0
    roi: RegionOfInterest = field(default_factory=RegionOfInterest)
    notices: tuple[str, ...] = field(default=(), compare=False)

    @property
    def calibrated(self) -> bool:
        """Whether the calibration has a camera matrix: its value ``k[0]`` isn't zero."""
        return self.k[0] != 0.0

    def fill(self, message: Any) -> None:
        """Copy all values to a ``sensor_msgs/CameraInfo`` or a similar object; keep its header."""
        message.width, message.height = self.width, self.height
        message.distortion_model = self.distortion_model
        message.d, message.k, message.r, message.p = (
            list(self.d),
            list(self.k),
            list(self.r),
            list(self.p),
        )
        message.binning_x, message.binning_y = self.binning_x, self.binning_y
        for name in _ROI:
            setattr(message.roi, name, getattr(self.roi, name))
        message.roi.do_rectify = self.roi.do_rectify

    @property
    def picture(self) -> tuple[int, int]:
        """Size of the pictures that the calibration is for, after binning and cropping."""
        width, height = (self.roi.width or self.width, self.roi.height or self.height)
        # At least 1, because scaled() divides by it: a file may state a binning above the size.
        return max(1, width // (self.binning_x or 1)), max(1, height // (self.binning_y or 1))

    def size_mismatch(self, width: int, height: int, source: str) -> str | None:
        """
        Return a sentence if the calibration doesn't fit pictures of this size; ``None``: it fits.

        :param source: path or URL of the calibration's file, for the message.
        """
        if (width, height) in (self.picture, (self.width, self.height)):
            return None
        return (
            f"calibration '{source}' is for {self.width}x{self.height} pictures, "
            f'the camera gives {width}x{height}: camera_info is published without '
            'the calibration'
        )

    def scaled(self, width: int, height: int) -> Calibration:
        """
        Return this calibration for pictures of another size with the same content.

        The centre of the first pixel is at 0, as in OpenCV, so the picture's edge is at -0.5 and
        a point x goes to (x + 0.5) * scale - 0.5. Distortion and rotation don't change, because
        their unit isn't the pixel.

        :raises ConfigError: the new size has another aspect ratio, or a side of the picture or of
            the region of interest would not be a whole number.
        """
        from fractions import Fraction  # imported late: slow to load, and few nodes need it

        was_width, was_height = self.picture
        across, down = Fraction(width, was_width), Fraction(height, was_height)
        # Rounding a side to whole pixels changes it by less than one pixel, so a larger difference
        # means another aspect ratio.
        if abs(was_height * across - height) >= 1 and abs(was_width * down - width) >= 1:
            raise ConfigError(
                f'{was_width}x{was_height} and {width}x{height} have different aspect ratios'
            )
        sides = {
            'image_width': self.width * across,
            'image_height': self.height * down,
            'roi.x_offset': self.roi.x_offset * across,
            'roi.y_offset': self.roi.y_offset * down,
            'roi.width': self.roi.width * across,
            'roi.height': self.roi.height * down,
        }
        for name, side in sides.items():
            if side.denominator != 1:
                raise ConfigError(f'{name} would be {float(side):g}, which is no whole number')
        image_width, image_height, x, y, region_width, region_height = map(int, sides.values())
        return replace(
            self,
            width=image_width,
            height=image_height,
            k=_scale_rows(self.k, float(across), float(down)),
            p=_scale_rows(self.p, float(across), float(down)),
            roi=replace(
                self.roi, x_offset=x, y_offset=y, width=region_width, height=region_height
            ),
        )


def _scale_rows(matrix: tuple[float, ...], across: float, down: float) -> tuple[float, ...]:
    """Scale a camera or projection matrix, as :meth:`Calibration.scaled` explains."""
    scale = np.array([
        [across, 0.0, 0.5 * (across - 1.0)],
        [0.0, down, 0.5 * (down - 1.0)],
        [0.0, 0.0, 1.0],
    ])  # fmt: skip
    scaled: list[float] = (scale @ np.reshape(matrix, (3, -1))).ravel().tolist()
    return tuple(scaled)


def uncalibrated(width: int, height: int) -> Calibration:
    """Return a calibration with only the pictures' size; all else is zero or empty."""
    return Calibration(width, height, distortion_model='')


def from_camera_info(message: Any, camera_name: str) -> Calibration:
    """
    Convert and check a ``sensor_msgs/CameraInfo``, from a request of ``set_camera_info``.

    :raises ConfigError: a value is impossible for a camera; the message names the field.
    """
    roi = message.roi
    region = RegionOfInterest(
        int(roi.x_offset), int(roi.y_offset), int(roi.width), int(roi.height), bool(roi.do_rectify)
    )
    d, k, r, p = (tuple(float(value) for value in getattr(message, name)) for name in 'dkrp')
    made = Calibration(
        int(message.width), int(message.height), camera_name,
        _model(str(message.distortion_model)), d, k, r, p,
        binning_x=int(message.binning_x), binning_y=int(message.binning_y), roi=region,
    )  # fmt: skip
    check_calibration(made, 'camera_info')
    return made


def check_calibration(calibration: Calibration, source: str) -> None:
    """
    Check all values of a calibration.

    :raises ConfigError: a value is impossible for a camera; the message names *source*, the field,
        the value and the allowed values.
    """
    for key, side in (('image_width', calibration.width), ('image_height', calibration.height)):
        if not 1 <= side <= MAX_SIDE:
            raise ConfigError(
                f"'{source}': {key} is {side}; it must be an integer from 1 to {MAX_SIDE}"
            )
    binning = {'binning_x': calibration.binning_x, 'binning_y': calibration.binning_y}
    region = {f'roi.{name}': getattr(calibration.roi, name) for name in _ROI}
    for key, number in (binning | region).items():
        if number > MAX_SIDE:  # calibration files with such a number are refused, too
            raise ConfigError(
                f"'{source}': {key} is {number}; it must be an integer from 0 to {MAX_SIDE}"
            )
    for key, (name, rows, columns) in _MATRICES.items():
        values = getattr(calibration, name)
        if columns and len(values) != rows * columns:
            raise ConfigError(
                f"'{source}': {key} has {len(values)} values; it must have {rows * columns} "
                f'({rows}x{columns})'
            )
        for value in values:
            if not math.isfinite(value):
                raise ConfigError(
                    f"'{source}': {key} has the value {value}; all values must be finite numbers"
                )
    _check_distortion(calibration, source)
    if calibration.k[0] < 0 or calibration.k[4] < 0:
        raise ConfigError(
            f"'{source}': camera_matrix has focal lengths {calibration.k[0]:g} and "
            f'{calibration.k[4]:g}; they must be positive, or 0 if unknown'
        )


def _model(name: str) -> str:
    """Return the name that CameraInfo uses for a distortion model."""
    lower = name.lower()
    return _OTHER_NAMES.get(lower, lower)


def _check_model(model: str, key: str, source: str) -> None:
    if model not in DISTORTION_COEFFICIENTS:
        known = ', '.join(DISTORTION_COEFFICIENTS)
        raise ConfigError(
            f"'{source}': {key} is {shown(model)}; it must be one of {known}"
            f'{nearest(model, DISTORTION_COEFFICIENTS)}'
        )


def _check_distortion(calibration: Calibration, source: str) -> None:
    model, found = calibration.distortion_model, len(calibration.d)
    if not found and not model:
        return  # no model and no coefficients: a lens without distortion
    _check_model(model, 'distortion_model', source)
    allowed = DISTORTION_COEFFICIENTS[model]
    if found and found not in allowed:
        counts = ' or '.join(map(str, allowed))
        others = [name for name, sizes in DISTORTION_COEFFICIENTS.items() if found in sizes]
        other = f"; distortion_model '{others[0]}' has {found}" if others else ''
        raise ConfigError(
            f"'{source}': distortion_coefficients has {found} values; {model} has {counts}{other}"
        )


def parse_calibration(text: str, source: str) -> Calibration:
    """
    Read and check a calibration from a file's text.

    :param source: the file's path, for messages.
    :raises ConfigError: the text is no calibration; the message names file, key, value and the
        allowed values.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError(
            f"'{source}' has {len(text)} characters; a calibration file has at most {MAX_BYTES}"
        )
    if _INI_SECTION.search(text):
        raise ConfigError(
            f"'{source}' is in the INI format of ROS 1; use the .yaml file that "
            'camera_calibration wrote beside it, '
            "or convert it by 'ros2 run camera_calibration_parsers convert FILE.ini FILE.yaml'"
        )
    if _XML.match(text):
        raise ConfigError(
            f"'{source}' is XML; a calibration is a YAML file with the keys {', '.join(_REQUIRED)}"
        )
    try:
        # BaseLoader returns every scalar as text and ignores tags.
        document = yaml.load(_OPENCV_HEADER.sub('', text), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"'{source}' is no YAML: {message_of(error)}") from error
    if not isinstance(document, dict):
        raise ConfigError(
            f"'{source}' is no calibration: it has no keys; it must have {', '.join(_REQUIRED)}"
        )
    for key in _REQUIRED:
        if key not in document:
            raise ConfigError(
                f"'{source}': key '{key}' is missing{_advice(key, document)}; "
                f'a calibration has the keys {", ".join(_REQUIRED)}'
            )
    model, notices = _stated_model(document, source)
    absent = [key for key in _KNOWN if key not in document]
    notices += [
        f"'{source}': key '{key}' is unknown and ignored{nearest(str(key), absent)}"
        for key in document
        if key not in (*_KNOWN, *_MODEL_KEYS)
    ]
    # camera_calibration of Foxy and Galactic always writes 'cols: 5' for the distortion
    # coefficients, even if there are 8.
    miscounted = model != 'plumb_bob'
    matrices = {
        name: _matrix(document[key], key, rows, columns, source, miscounted and not columns)
        for key, (name, rows, columns) in _MATRICES.items()
    }
    made = Calibration(
        _integer(document['image_width'], 'image_width', source, 1),
        _integer(document['image_height'], 'image_height', source, 1),
        _text(document.get('camera_name', ''), 'camera_name', source),
        model,
        binning_x=_integer(document.get('binning_x', '0'), 'binning_x', source),
        binning_y=_integer(document.get('binning_y', '0'), 'binning_y', source),
        roi=_region(document.get('roi'), source),
        notices=tuple(notices),
        **matrices,
    )
    check_calibration(made, source)
    return made


def _stated_model(document: Mapping[Any, Any], source: str) -> tuple[str, list[str]]:
    """
    Return the distortion model that a file names, and notices for the user.

    Besides ``distortion_model``, two other keys may state the model. camera_calibration's first
    fisheye version wrote ``camera_model``, which in other files is the projection, such as
    ``pinhole``. OpenCV's example of a calibrator writes ``fisheye_model``.
    """
    stated: dict[str, str] = {}
    for key in ('distortion_model', 'camera_model'):
        if key in document:
            stated[key] = _model(_text(document[key], key, source))
    if stated.get('camera_model') == 'pinhole':
        del stated['camera_model']
    if document.get('fisheye_model') == '1':
        stated['fisheye_model'] = 'equidistant'
    if not stated:
        return 'plumb_bob', [f"'{source}': key 'distortion_model' is missing; assuming plumb_bob"]
    if list(stated.values()) == ['']:
        return '', []  # an empty name: a lens without distortion
    for key, model in stated.items():
        _check_model(model, key, source)
    if len(set(stated.values())) > 1:
        both = ', '.join(f"{key} '{model}'" for key, model in stated.items())
        raise ConfigError(f"'{source}' names two distortion models: {both}; keep the right one")
    return next(iter(stated.values())), []


def _advice(key: str, document: Mapping[Any, Any]) -> str:
    """Return the likely reason why a key is missing, and what to do."""
    if hint := nearest(key, [str(other) for other in document if other not in _KNOWN]):
        return hint.replace('did you mean', 'is it named')
    if 'intrinsics' in document or any(_KALIBR.fullmatch(str(other)) for other in document):
        return (
            ', because this file is a camera chain of Kalibr: write its resolution, intrinsics '
            'and distortion_coeffs to a ROS calibration file'
        )
    if key in ('rectification_matrix', 'projection_matrix') and 'camera_matrix' in document:
        return (
            ", as in OpenCV's own files: for a single camera, rectification_matrix is the "
            'identity, and projection_matrix is camera_matrix with a fourth column of zeros; '
            'add them and distortion_model'
        )
    return ''


def _text(value: object, key: str, source: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"'{source}': {key} is {shown(value)}; it must be text")
    return value


def _integer(value: object, key: str, source: str, low: int = 0) -> int:
    if (
        not isinstance(value, str)
        or not _INTEGER.fullmatch(value)
        or len(value) > 9
        or not low <= int(value) <= MAX_SIDE
    ):
        raise ConfigError(
            f"'{source}': {key} is {shown(value)}; it must be an integer from {low} to {MAX_SIDE}"
        )
    return int(value)


def _matrix(
    value: object, key: str, rows: int, columns: int, source: str, miscounted: bool
) -> tuple[float, ...]:
    """
    Return a matrix's values from the calibration file; *columns* 0: any number of columns.

    :param miscounted: whether a file may say ``cols: 5`` although ``data`` doesn't have 5 values.
    :raises ConfigError: the matrix's shape or one of its values is wrong.
    """
    if not isinstance(value, dict) or not isinstance(value.get('data'), list):
        raise ConfigError(
            f"'{source}': {key} is {shown(value)}; it must have the keys rows, cols and data; "
            'data must be a list of numbers'
        )
    shape = [_integer(value.get(part), f'{key}.{part}', source) for part in ('rows', 'cols')]
    if columns and shape != [rows, columns]:
        raise ConfigError(
            f"'{source}': {key} is {shape[0]}x{shape[1]}; it must be {rows}x{columns}"
        )
    numbers = [_number(entry, key, source) for entry in value['data']]
    if len(numbers) != shape[0] * shape[1] and not (miscounted and shape == [1, 5]):
        raise ConfigError(
            f"'{source}': {key}.data has {len(numbers)} values; {shape[0]}x{shape[1]} needs "
            f'{shape[0] * shape[1]}'
        )
    return tuple(numbers)


def _number(value: object, key: str, source: str) -> float:
    if (
        not isinstance(value, str)
        or not _NUMBER.fullmatch(value)
        or not math.isfinite(float(value))
    ):
        raise ConfigError(
            f"'{source}': {key}.data has the value {shown(value)}; all values must be finite "
            'numbers'
        )
    return float(value)


def _region(value: object, source: str) -> RegionOfInterest:
    if value is None:
        return RegionOfInterest()
    if not isinstance(value, dict):
        raise ConfigError(
            f"'{source}': roi is {shown(value)}; it must have the keys {', '.join(_ROI)} and "
            'do_rectify'
        )
    rectify = str(value.get('do_rectify', 'false')).lower()
    if rectify not in ('true', 'false', '0', '1'):
        raise ConfigError(
            f"'{source}': roi.do_rectify is {shown(rectify)}; it must be true or false"
        )
    x, y, width, height = (_integer(value.get(name, '0'), f'roi.{name}', source) for name in _ROI)
    return RegionOfInterest(x, y, width, height, rectify in ('true', '1'))


class _Quoted(str):
    """A text that :class:`_Dumper` writes in quotes."""


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that writes :class:`_Quoted` in quotes; yaml's own dumper stays unchanged."""


_Dumper.add_representer(
    _Quoted,
    lambda dumper, text: dumper.represent_scalar('tag:yaml.org,2002:str', str(text), style='"'),
)


def format_calibration(calibration: Calibration) -> str:
    """
    Return the text of a calibration file in the layout of camera_calibration_parsers.

    :func:`parse_calibration` reads exactly the same numbers from it.
    """
    camera = calibration.camera_name
    # Quote names like 0815, 1e5 or y: some YAML parsers read these as numbers or booleans.
    camera = camera if re.fullmatch(r'[A-Za-z][\w/.-]+', camera, re.ASCII) else _Quoted(camera)
    found: dict[str, Any] = {
        'image_width': calibration.width,
        'image_height': calibration.height,
        'camera_name': camera,
    }
    for key, (name, rows, columns) in _MATRICES.items():
        values = [float(value) for value in getattr(calibration, name)]
        if key == 'distortion_coefficients':
            found['distortion_model'] = calibration.distortion_model
        found[key] = {'rows': rows, 'cols': columns or len(values), 'data': values}
    if calibration.binning_x or calibration.binning_y:
        found |= {'binning_x': calibration.binning_x, 'binning_y': calibration.binning_y}
    if calibration.roi != RegionOfInterest():
        found['roi'] = asdict(calibration.roi)
    return str(
        yaml.dump(
            found,
            Dumper=_Dumper,
            sort_keys=False,
            default_flow_style=None,
            allow_unicode=True,
            width=1 << 16,
        )
    )


DEFAULT_URL = 'file://${ROS_HOME}/camera_info/${NAME}.yaml'


class NoPackageError(ConfigError):
    """A URL names a ROS package that isn't installed now; it may be installed later."""


PackageFolder = Callable[[str], 'str | os.PathLike[str]']
"""Returns the share folder of a named ROS package; raises LookupError if it isn't installed."""
_VARIABLES = ('NAME', 'ROS_HOME')


def camera_name_of(text: str) -> str:
    """
    Make a camera's name, for file names and calibrations, from *text*.

    Each run of characters other than ASCII letters, digits and underscores becomes one underscore,
    and underscores at the ends are removed. If nothing is left, the name is 'camera'.
    """
    return re.sub(r'\W+', '_', text, flags=re.ASCII).strip('_') or 'camera'


def ros_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``$ROS_HOME``, by default ``~/.ros``."""
    named = environment.get('ROS_HOME', '')
    return (
        Path(named) if named else Path(environment.get('HOME') or os.path.expanduser('~')) / '.ros'
    )


def calibration_path(
    url: str,
    camera_name: str,
    *,
    package_folder: PackageFolder | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """
    Return the path of the file that a ``camera_info_url`` names.

    :param url: ``file:///path``, ``package://package/path`` or a bare absolute path; empty for
        :data:`DEFAULT_URL`.
    :param camera_name: replaces ``${NAME}`` in *url*.
    :raises NoPackageError: the package isn't installed.
    :raises ConfigError: the URL has another scheme, an unknown variable, a relative path, or
        ``..`` in a path in a package.
    """
    given = url or DEFAULT_URL
    said = f"parameter 'camera_info_url' is '{given}'"
    resolved = _substitute(given, camera_name, environment)
    scheme, separator, rest = resolved.partition('://')
    if not separator:
        scheme, rest = 'file', resolved
    if scheme.lower() == 'file':
        if not rest.startswith('/'):
            raise ConfigError(
                f'{said}; a file URL has an absolute path: file:///folder/camera.yaml'
            )
        return Path(rest)
    if scheme.lower() != 'package':
        raise ConfigError(f'{said}; it must begin with file:// or package://')
    package, _, path = rest.partition('/')
    if not package or not path:
        raise ConfigError(
            f'{said}; a package URL is package://PACKAGE/path, with a path in the share folder '
            'of PACKAGE'
        )
    if package_folder is None:
        raise ConfigError(f"{said}; this program can't look up packages, use file://")
    if '..' in Path(path).parts:
        raise ConfigError(f"{said}; its path must stay in the package, without '..'")
    try:
        folder = Path(package_folder(package))
    except LookupError as error:
        raise NoPackageError(
            f"{said}; there is no ROS package '{package}' in this environment"
        ) from error
    return folder / path


def _substitute(url: str, camera_name: str, environment: Mapping[str, str]) -> str:
    values = {'NAME': camera_name.replace('/', '_'), 'ROS_HOME': str(ros_home(environment))}

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            allowed = ', '.join(f'${{{name}}}' for name in _VARIABLES)
            raise ConfigError(
                f"parameter 'camera_info_url' is '{url}': variable '{match[0]}' is unknown; "
                f'known are {allowed}'
            )
        return values[match[1]]

    return re.sub(r'\$\{([^}]*)\}', value, url)


def load_calibration(path: Path) -> Calibration:
    """
    Read a calibration file.

    :raises FileNotFoundError: the file doesn't exist, which is normal before the first
        calibration.
    :raises ConfigError: the file can't be read, or isn't a calibration.
    """
    try:
        _check_regular(path)
        with path.open('rb') as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode('utf-8-sig')
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"calibration '{path}' can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"calibration '{path}' is no text in UTF-8 ({error.reason} at byte {error.start})"
        ) from error
    return parse_calibration(text, str(path))


def _check_regular(path: Path) -> None:
    """
    Refuse an existing path that isn't a regular file.

    Opening a pipe would block until another program opens its other end.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(
            f"calibration '{path}' is no file; set 'camera_info_url' to a file that "
            'camera_calibration has written'
        )


def save_calibration(path: Path, calibration: Calibration) -> None:
    """
    Write a calibration file, whole or not at all, and make missing folders.

    If the path is a symbolic link, the link stays, and the file to which it points is replaced.

    :raises ConfigError: the calibration isn't valid, or the file can't be written. An existing
        file then stays unchanged.
    """
    check_calibration(calibration, str(path))
    try:
        _check_regular(path)
        Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, format_calibration(calibration))
    except OSError as error:
        raise ConfigError(
            f"calibration '{path}' can't be written: {error.strerror}; set 'camera_info_url' "
            'to another place'
        ) from error


class CameraInfoStore:
    """
    Holds a camera's calibration and the path of its file, and tells what is wrong with them.

    If the file is missing or can't be used, the camera counts as uncalibrated. It still gives
    frames, and :meth:`replace` can write a good file.

    :param url: the URL of the calibration's file, in a form that :func:`calibration_path` accepts.
    :param camera_name: the camera's name from :func:`camera_name_of`; it replaces ``${NAME}`` in
        *url*.
    :param size: the size of the running camera's pictures, in pixels.
    :param rescale: whether a calibration for another size with the same aspect ratio is scaled.
    :raises ConfigError: the URL is not valid, see :func:`calibration_path`.
    """

    def __init__(
        self, url: str, camera_name: str, size: tuple[int, int], *,
        package_folder: PackageFolder | None = None,
        environment: Mapping[str, str] = os.environ, rescale: bool = False,
    ) -> None:  # fmt: skip
        self.camera_name = camera_name
        self.calibration = uncalibrated(*size)
        self._named = bool(url)
        self._size = size
        self._has_lens = True
        self._rescale = rescale
        self._missing = False
        self._path: Path | None = None
        self.failure = ''
        """Why the file can't be used; empty: it can be used, or doesn't exist."""
        self.place = url
        """Path of the calibration's file, or the URL if the URL's package isn't installed."""
        try:
            self._path = calibration_path(
                url, camera_name, package_folder=package_folder, environment=environment
            )
            self.place = str(self._path)
            self.calibration = load_calibration(self._path)
        except NoPackageError as error:
            self.failure = str(error)
        except FileNotFoundError:
            self._missing = True
        except ConfigError as error:
            if self._path is None:
                raise
            self.failure = str(error)

    def resize(self, width: int, height: int, *, has_lens: bool = True) -> None:
        """
        Record the size of the pictures of a camera that has just been opened.

        :param has_lens: whether the camera has a lens that can be calibrated.
        """
        self._size, self._has_lens = (width, height), has_lens
        if not self.calibration.calibrated:
            self.calibration = uncalibrated(width, height)

    @property
    def current(self) -> Calibration:
        """
        The calibration to publish.

        If the file's calibration doesn't fit the camera's pictures, this is the empty calibration
        that :func:`uncalibrated` makes for their size.
        """
        return self._fit()[0]

    def _fit(self) -> tuple[Calibration, str]:
        """
        Return the calibration to publish, and why the file's calibration doesn't fit the pictures.

        The reason is empty if the calibration fits, or if the camera isn't calibrated.

        Before the camera is open, its pictures' size is unknown (0, 0), and every calibration
        counts as fitting.
        """
        found, none = self.calibration, uncalibrated(*self._size)
        if not found.calibrated:
            return none, ''
        mismatch = found.size_mismatch(*self._size, self.place) if any(self._size) else None
        if mismatch is None:
            return found, ''
        if not self._rescale:
            return none, mismatch
        try:
            return found.scaled(*self._size), ''
        except ConfigError as error:
            return none, f"{mismatch}, because the calibration can't be scaled: {error}"

    @property
    def wrong(self) -> bool:
        """
        Whether ``camera_info_url`` names a missing file, or a calibration has :attr:`troubles`.

        A file that can't be used doesn't count here: :attr:`failure` reports it.
        """
        return (self._missing and self._named) or (
            self.calibration.calibrated and bool(self.troubles)
        )

    @property
    def troubles(self) -> tuple[tuple[str, str], ...]:
        """
        Pairs of texts: a fault of the calibration, and the step that corrects it.

        No fault stops the camera from giving frames.
        """
        if self.failure:
            text = f'the camera counts as not calibrated: {self.failure}'
            step = 'correct the file, or run camera_calibration'
            return ((text, "correct 'camera_info_url'" if self._path is None else step),)
        if self._missing:
            if not (self._has_lens or self._named):
                return ()
            return (
                (
                    f"the camera is not calibrated: there is no '{self.place}'",
                    "run camera_calibration, or set 'camera_info_url'",
                ),
            )
        found = [(notice, 'correct the file') for notice in self.calibration.notices]
        if not self.calibration.calibrated:
            text = (
                f"calibration '{self.place}' has a camera matrix of zeros: "
                'the camera counts as not calibrated'
            )
            return (*found, (text, 'run camera_calibration'))
        mismatch = self._fit()[1]
        if mismatch:
            scale = (
                ''
                if self._rescale
                else "set 'rescale_camera_info' if pictures of both sizes show the same view, "
            )
            found.append(
                (
                    mismatch,
                    "calibrate at the camera's size, run the camera at the calibration's size, "
                    f"{scale}or set 'camera_info_url' to a file that fits",
                )
            )
        other = self.calibration.camera_name
        if other not in ('', 'unknown', self.camera_name):
            text = (
                f"calibration '{self.place}' is of a camera named '{other}', "
                f"but this camera's name is '{self.camera_name}'"
            )
            found.append(
                (text, "correct 'camera_name', or set 'camera_info_url' to this camera's file")
            )
        return tuple(found)

    @property
    def notices(self) -> tuple[str, ...]:
        """The :attr:`troubles` as sentences for the log."""
        return tuple(f'{text}; {step}' for text, step in self.troubles)

    def replace(self, calibration: Calibration) -> None:
        """
        Write a new calibration to the file, then use it; called by service ``set_camera_info``.

        :raises ConfigError: the new calibration can't be used or written; the old calibration
            stays in use.
        """
        if self._path is None:
            raise ConfigError(self.failure)
        save_calibration(self._path, calibration)
        self.calibration, self._missing, self.failure = calibration, False, ''
