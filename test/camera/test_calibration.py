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
Calibration files.

Those that the standard calibrator and its C++ parsers write, those that people spoil, and what
comes back.
"""

from __future__ import annotations

from dataclasses import replace
import math
from types import SimpleNamespace

import cv2
from hypothesis import example, given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest
import yaml

from zc_perception.camera.calibration import (
    Calibration,
    DISTORTION_COEFFICIENTS,
    format_calibration,
    from_camera_info,
    parse_calibration,
    RegionOfInterest,
    uncalibrated,
)
from zc_perception.errors import ConfigError

K = (415.12614, 0.0, 325.52373, 0.0, 410.49986, 180.14929, 0.0, 0.0, 1.0)
P = (380.5, 0.0, 322.25, 0.0, 0.0, 401.125, 179.5, 0.0, 0.0, 0.0, 1.0, 0.0)
D = (-0.017697, 1e-05, 0.005751, -0.000139, 0.0)
IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
GOOD = Calibration(640, 360, 'front', 'plumb_bob', D, K, IDENTITY, P)


def calibrator_text(
    name: str,
    model: str,
    d: list[float],
    k: NDArray[np.float64],
    r: NDArray[np.float64],
    p: NDArray[np.float64],
) -> str:
    """
    Return a file as the standard calibrator lays out ost.yaml.

    It has NumPy's own printing of matrices, over several lines, with its bare points.
    """

    def matrix(values: NDArray[np.float64], precision: int) -> str:
        text = np.array2string(values, precision=precision, suppress_small=True, separator=', ')
        return '[' + text.replace('[', '').replace(']', '').replace('\n', '\n        ') + ']'

    return '\n'.join([
        'image_width: 640', 'image_height: 360', f'camera_name: {name}',
        'camera_matrix:', '  rows: 3', '  cols: 3', '  data: ' + matrix(k, 5),
        f'distortion_model: {model}',
        'distortion_coefficients:', '  rows: 1', f'  cols: {len(d)}',
        '  data: [' + ', '.join(f'{value:8f}' for value in d) + ']',
        'rectification_matrix:', '  rows: 3', '  cols: 3', '  data: ' + matrix(r, 8),
        'projection_matrix:', '  rows: 3', '  cols: 4', '  data: ' + matrix(p, 5), '',
    ])  # fmt: skip


@pytest.mark.parametrize(
    ('model', 'count'),
    [
        ('plumb_bob', 5),
        ('plumb_bob', 4),
        ('rational_polynomial', 8),
        ('rational_polynomial', 14),
        ('equidistant', 4),
    ],
)
def test_what_the_calibrator_writes_is_read_to_the_last_printed_digit(
    model: str, count: int
) -> None:
    rng = np.random.default_rng(count)
    k = np.array([[523.123456, 0, 317.98765], [0, 521.4, 181.5], [0, 0, 1]])
    r = np.array([[0.99991, -0.00312345, 0.01], [0.0031, 0.999995, -0.000004], [-0.01, 0, 0.9999]])
    p = np.array([[480.0, 0, 320, -57.25], [0, 480.0, 180, 0], [0, 0, 1, 0]])
    d = list(rng.uniform(-0.5, 0.5, count))
    text = calibrator_text('narrow_stereo/left', model, d, k, r, p)
    assert '0.     ' in text and '1.' in text, "NumPy's printing is what it was"
    found = parse_calibration(text, 'ost.yaml')
    assert (found.width, found.height, found.camera_name, found.distortion_model) == (
        640,
        360,
        'narrow_stereo/left',
        model,
    )
    assert np.allclose(found.k, k.ravel(), atol=6e-6) and np.allclose(
        found.r, r.ravel(), atol=6e-9
    )
    assert np.allclose(found.p, p.ravel(), atol=6e-6) and np.allclose(found.d, d, atol=6e-7)
    assert found.notices == ()
    assert parse_calibration(format_calibration(found), 'again') == found


def test_what_the_cpp_parsers_write_is_read_too() -> None:
    text = """image_width: 640
image_height: 360
camera_name: 0815
camera_matrix:
  rows: 3
  cols: 3
  data: [415.12614, 0, 325.52373, 0, 410.49986, 180.14929, 0, 0, 1]
distortion_model: plumb_bob
distortion_coefficients:
  rows: 1
  cols: 5
  data: [-0.017697, 1e-05, 0.005751, -0.000139, 0]
rectification_matrix:
  rows: 3
  cols: 3
  data: [1, 0, 0, 0, 1, 0, 0, 0, 1]
projection_matrix:
  rows: 3
  cols: 4
  data: [380.5, 0, 322.25, 0, 0, 401.125, 179.5, 0, 0, 0, 1, 0]"""
    found = parse_calibration(text, 'cpp')
    assert found == Calibration(640, 360, '0815', 'plumb_bob', D, K, IDENTITY, P)
    block = text.replace(
        '[1, 0, 0, 0, 1, 0, 0, 0, 1]',
        '\n' + '\n'.join(f'    - {v}' for v in (1, 0, 0, 0, 1, 0, 0, 0, 1)),
    )
    commented = '# by hand\n' + block.replace('rows: 3', 'rows: 3   # three', 1)
    opencv = '%YAML:1.0\n---\n' + text.replace(
        'camera_matrix:', 'camera_matrix: !!opencv-matrix'
    ).replace('cols: 3', 'cols: 3\n  dt: d')
    assert parse_calibration(commented, 'block') == found
    assert parse_calibration(opencv, 'opencv') == found
    assert parse_calibration(text.replace('distortion_model: plumb_bob\n', ''), 'old').notices == (
        "'old': key 'distortion_model' is missing; taken as plumb_bob",
    )
    assert parse_calibration(text.replace('camera_name: 0815\n', ''), 'nameless').camera_name == ''


FINITE = st.floats(allow_nan=False, allow_infinity=False)
SIDE = st.integers(1, 65535)


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    model = draw(st.sampled_from(sorted(DISTORTION_COEFFICIENTS)))
    count = draw(st.sampled_from((0, *DISTORTION_COEFFICIENTS[model])))
    d, k, r, p = (tuple(draw(st.lists(FINITE, min_size=n, max_size=n))) for n in (count, 9, 9, 12))
    k = (abs(k[0]), *k[1:4], abs(k[4]), *k[5:])
    region = RegionOfInterest(
        *(draw(st.integers(0, 65535)) for _ in range(4)), do_rectify=draw(st.booleans())
    )
    name = draw(st.text(st.characters(exclude_categories=('Cs',)), max_size=20))
    return Calibration(
        draw(SIDE), draw(SIDE), name, model, d, k, r, p,
        binning_x=draw(st.integers(0, 8)), binning_y=draw(st.integers(0, 8)),
        roi=draw(st.sampled_from((RegionOfInterest(), region))),
    )  # fmt: skip


@settings(max_examples=150)
@given(calibrations())
@example(
    Calibration(
        640, 360, 'front', 'plumb_bob', D, K, IDENTITY, (1e-05, 1e16, 5e-324, -0.0, *P[4:])
    )
)
def test_every_number_comes_back_bit_by_bit(calibration: Calibration) -> None:
    text = format_calibration(calibration)
    found = parse_calibration(text, 'x')
    assert found == calibration
    assert [math.copysign(1, v) for v in found.p] == [
        math.copysign(1, v) for v in calibration.p
    ], 'minus zero, too'
    # PyYAML is a reader of YAML 1.1, which takes 1e-05 for text: it must see numbers.
    plain = yaml.safe_load(text)
    assert tuple(plain['projection_matrix']['data']) == calibration.p
    assert all(type(value) is float for value in plain['camera_matrix']['data'])


TEXT = format_calibration(GOOD)
BAD = {
    'no YAML': ('{[', "'f.yaml' is no YAML"),
    'nothing': ('', "'f.yaml' is no calibration: it has no keys"),
    'missing key': (TEXT.replace('image_width: 640\n', ''), "key 'image_width' is missing"),
    'misspelt key': (
        TEXT.replace('distortion_coefficients', 'distortion_coefficents'),
        "is it what is called 'distortion_coefficents'?",
    ),
    'no size': (
        TEXT.replace('640', '0', 1),
        "image_width is '0'; it must be an integer from 1 to 65535",
    ),
    'transposed': (
        TEXT.replace('rows: 3\n  cols: 4', 'rows: 4\n  cols: 3'),
        'projection_matrix is 4x3; it must be 3x4',
    ),
    'value too few': (
        TEXT.replace(', 1.0, 0.0]', ', 1.0]'),
        'projection_matrix.data has 11 values; 3x4 are 12',
    ),
    'not a number': (
        TEXT.replace('415.12614', '415,12614x'),
        "camera_matrix.data has the value '12614x'",
    ),
    'nan': (
        TEXT.replace('415.12614', '.nan'),
        "camera_matrix.data has the value '.nan'; all must be finite numbers",
    ),
    'negative focal length': (
        TEXT.replace('415.12614', '-415.12614'),
        'camera_matrix has focal lengths -415.126 and 410.5; they are positive',
    ),
    'unknown model': (
        TEXT.replace('plumb_bob', 'plum_bob'),
        "it must be one of plumb_bob, rational_polynomial, equidistant; did you mean 'plumb_bob'?",
    ),
    'wrong count': (
        TEXT.replace('plumb_bob', 'equidistant'),
        'distortion_coefficients has 5 values; equidistant has 4',
    ),
    'roi without keys': (TEXT + 'roi: 5\n', "roi is '5'"),
    'roi unsure': (
        TEXT + 'roi: {do_rectify: maybe}\n',
        "roi.do_rectify is 'maybe'; it must be true or false",
    ),
    'endless': ('a' * ((1 << 20) + 1), 'has 1048577 characters'),
}


@pytest.mark.parametrize('case', BAD)
def test_what_is_wrong_is_named_with_file_key_value_and_what_is_allowed(case: str) -> None:
    text, message = BAD[case]
    with pytest.raises(ConfigError) as caught:
        parse_calibration(text, 'f.yaml')
    assert message in str(caught.value) and "'f.yaml'" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_unknown_keys_are_told_and_harmless() -> None:
    found = parse_calibration(TEXT.replace('camera_name', 'camera_nmae'), 'f.yaml')
    assert found == replace(GOOD, camera_name='')
    assert found.notices == (
        "'f.yaml': key 'camera_nmae' is unknown and ignored; did you mean 'camera_name'?",
    )


D4 = '[-0.02, 0.01, -0.003, 0.0004]'
D8 = '[0.1, 0.2, 0.003, 0.0004, 0.5, 0.6, 0.7, 0.8]'


def with_model(lines: str, data: str, columns: int = 0) -> str:
    """Return the text of a calibration with these model lines and these coefficients."""
    columns = columns or data.count(',') + 1
    text = TEXT.replace('distortion_model: plumb_bob\n', lines)
    before, _, rest = text.partition('distortion_coefficients:')
    old = rest[: rest.index('rectification_matrix')]
    new = f'\n  rows: 1\n  cols: {columns}\n  data: {data}\n'
    return f'{before}distortion_coefficients:{rest.replace(old, new)}'


@pytest.mark.parametrize(
    ('lines', 'data', 'columns', 'model'),
    [
        # camera_calibration from November 2019 to August 2020
        ('camera_model: fisheye\n', D4, 4, 'equidistant'),
        ('camera_model: plumb_bob\n', '[0.1, 0.2, 0.003, 0.0004, 0.0]', 5, 'plumb_bob'),
        ('camera_model: rational_polynomial\n', D8, 8, 'rational_polynomial'),
        # that of Foxy and Galactic, which says 'cols: 5' of all
        ('distortion_model: fisheye\n', D4, 5, 'equidistant'),
        ('distortion_model: rational_polynomial\n', D8, 5, 'rational_polynomial'),
        # by hand
        ('distortion_model: EQUIDISTANT\n', D4, 4, 'equidistant'),
        ('distortion_model: Plumb_Bob\n', D4, 4, 'plumb_bob'),
        ('camera_model: pinhole\ndistortion_model: equidistant\n', D4, 4, 'equidistant'),
        # OpenCV's own calibrator, completed
        ('fisheye_model: 1\n', D4, 4, 'equidistant'),
        ('fisheye_model: 0\ndistortion_model: plumb_bob\n', D4, 4, 'plumb_bob'),
    ],
)
def test_models_as_other_versions_and_programs_write_them(
    lines: str, data: str, columns: int, model: str
) -> None:
    found = parse_calibration(with_model(lines, data, columns), 'f.yaml')
    assert (found.distortion_model, list(found.d)) == (model, yaml.safe_load(data))
    assert found.notices == ()
    assert parse_calibration(format_calibration(found), 'again') == found


@pytest.mark.parametrize(
    ('lines', 'data', 'columns', 'message'),
    [
        ('camera_model: omni\n', D4, 4, "camera_model is 'omni'; it must be one of plumb_bob, r"),
        ('distortion_model: radtan\n', D4, 4, "distortion_model is 'radtan'; it must be one of"),
        ('distortion_model: unknown\n', D4, 4, "distortion_model is 'unknown'; it must be one"),
        (
            'camera_model: fisheye\ndistortion_model: plumb_bob\n',
            D4,
            4,
            "two distortion models: distortion_model 'plumb_bob', camera_model 'equidistant'",
        ),
        ('fisheye_model: 1\ndistortion_model: plumb_bob\n', D4, 4, 'names two distortion models'),
        (
            'distortion_model: plumb_bob\n',
            D8,
            8,
            "8 values; plumb_bob has 4 or 5; distortion_model 'rational_polynomial' has 8",
        ),
        ('', D8, 8, "plumb_bob has 4 or 5; distortion_model 'rational_polynomial' has 8"),
        ('distortion_model: plumb_bob\n', D4, 5, 'has 4 values; 1x5 are 5'),
        ('distortion_model: equidistant\n', D4, 6, 'has 4 values; 1x6 are 6'),
        ('distortion_model: fisheye\n', '[1.0]', 5, 'has 1 values; equidistant has 4'),
        ('distortion_model: [a]\n', D4, 4, "distortion_model is ['a']; it must be text"),
    ],
)
def test_a_model_that_is_unknown_or_not_clear_is_refused_by_name(
    lines: str, data: str, columns: int, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_calibration(with_model(lines, data, columns), 'f.yaml')
    assert message in str(caught.value) and "'f.yaml'" in str(caught.value)


KALIBR = """cam0:
  cam_overlaps: []
  camera_model: pinhole
  distortion_coeffs: [-0.28, 0.07, 0.0001, 1.7e-05]
  distortion_model: radtan
  intrinsics: [458.6, 457.2, 367.2, 248.3]
  resolution: [752, 480]
  rostopic: /cam0/image_raw
"""
INI = """# oST version 5.0 parameters


[image]

width
640

height
480

[mono_left]

camera matrix
369.344588 0.000000 320.739078
0.000000 367.154330 203.592450
0.000000 0.000000 1.000000

distortion
0.189544 -0.018229 -0.000630 0.000054 -0.000212

rectification
1.000000 0.000000 0.000000
0.000000 1.000000 0.000000
0.000000 0.000000 1.000000

projection
262.927429 0.000000 320.984481 0.000000
0.000000 302.056213 188.592437 0.000000
0.000000 0.000000 1.000000 0.000000
"""


def opencv_file(suffix: str) -> str:
    """Return what OpenCV's own example of a calibrator keeps."""
    storage = cv2.FileStorage(suffix, cv2.FILE_STORAGE_WRITE | cv2.FILE_STORAGE_MEMORY)
    storage.write('image_width', 640)
    storage.write('image_height', 360)
    storage.write('camera_matrix', np.reshape(K, (3, 3)))
    storage.write('distortion_coefficients', np.reshape(D, (5, 1)))
    storage.write('avg_reprojection_error', 0.25)
    return str(storage.releaseAndGetString())


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (KALIBR, "key 'image_width' is missing, for this is a camera chain of Kalibr: write its"),
        (INI, 'is in the INI format of ROS 1; use the .yaml file that camera_calibration wrote'),
        (INI.replace('\n', '\r\n'), 'ros2 run camera_calibration_parsers convert FILE.ini FILE.'),
        (opencv_file('.yml'), "'rectification_matrix' is missing, as in OpenCV's own files: of a"),
        (opencv_file('.json'), "'rectification_matrix' is missing, as in OpenCV's own files: of"),
        (opencv_file('.xml'), 'is XML; a calibration is a YAML file with image_width'),
    ],
)
def test_files_of_other_programs_are_named_with_what_to_do(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_calibration(text, 'f.yaml')
    assert message in str(caught.value) and "'f.yaml'" in str(caught.value)


def test_a_completed_file_of_opencv_has_its_values() -> None:
    text = opencv_file('.yml')
    assert text.startswith('%YAML:1.0\n---\n') and '!!opencv-matrix' in text
    rest = TEXT[slice(TEXT.index('rectification_matrix'), None)]
    found = parse_calibration(f'{text}distortion_model: plumb_bob\n{rest}', 'f.yaml')
    assert (found.k, found.d, found.p) == (K, D, P)


def project(made: Calibration, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return where OpenCV sees points of the world in the camera's picture."""
    picture, _ = cv2.projectPoints(
        points, np.zeros(3), np.zeros(3), np.reshape(made.k, (3, 3)), np.array(made.d)
    )
    return np.reshape(picture, (-1, 2))


@pytest.mark.parametrize('size', [(320, 180), (1280, 720), (1920, 1080), (64, 36)])
def test_a_scaled_calibration_sees_points_where_a_scaled_picture_shows_them(
    size: tuple[int, int],
) -> None:
    right = replace(GOOD, k=(*K[:1], 0.5, *K[2:]), p=(*P[:3], -57.25, *P[4:]))
    scaled = right.scaled(*size)
    assert (scaled.width, scaled.height, scaled.picture) == (*size, size)
    points = np.random.default_rng(1).uniform([-1, -0.5, 1], [1, 0.5, 3], (50, 3))
    scale = np.array([size[0] / 640, size[1] / 360])
    # The edges of both pictures are the same, and pixel centres are half a pixel from them.
    plain = replace(right, k=(*K[:1], 0.0, *K[2:]))
    expected = (project(plain, points) + 0.5) * scale - 0.5
    assert np.allclose(project(plain.scaled(*size), points), expected, atol=1e-6)
    for rows, found, was in ((3, scaled.k, right.k), (4, scaled.p, right.p)):
        world = points.T if rows == 3 else np.vstack([points.T, np.ones(50)])
        at, wanted = (np.reshape(m, (3, rows)) @ world for m in (found, was))
        at, wanted = at[:2] / at[2], wanted[:2] / wanted[2]
        assert np.allclose(at, (wanted + 0.5) * scale[:, None] - 0.5, atol=1e-6)
    assert (scaled.d, scaled.r, scaled.camera_name) == (right.d, right.r, right.camera_name)
    back = scaled.scaled(640, 360)
    assert np.allclose(back.k, right.k) and np.allclose(back.p, right.p)


def test_region_and_binning_are_scaled_with_the_picture() -> None:
    region = RegionOfInterest(10, 20, 320, 180, True)
    made = replace(GOOD, roi=region, binning_x=2, binning_y=2)
    scaled = made.scaled(320, 180)
    assert scaled.roi == RegionOfInterest(20, 40, 640, 360, True)
    assert (scaled.width, scaled.height, scaled.binning_x) == (1280, 720, 2)
    assert scaled.picture == (320, 180)
    odd = replace(made, roi=replace(region, x_offset=11))
    with pytest.raises(ConfigError, match=r'roi\.x_offset would be 5\.5, which is no whole num'):
        odd.scaled(80, 45)


@pytest.mark.parametrize(
    ('was', 'wanted', 'fits'),
    [
        ((1920, 1080), (854, 480), True),
        ((1920, 1080), (1366, 768), True),
        ((854, 480), (1920, 1080), True),
        ((1920, 1080), (848, 480), False),
        ((640, 360), (640, 480), False),
        ((640, 480), (480, 640), False),
        ((640, 360), (320, 179), False),
    ],
)
def test_only_pictures_of_the_same_shape_are_scaled(
    was: tuple[int, int], wanted: tuple[int, int], fits: bool
) -> None:
    made = replace(GOOD, width=was[0], height=was[1])
    if fits:
        assert made.scaled(*wanted).picture == wanted
    else:
        with pytest.raises(ConfigError, match='are no pictures of the same shape'):
            made.scaled(*wanted)


@settings(max_examples=300)
@given(st.data())
def test_a_spoilt_file_is_read_or_refused_never_worse(data: st.DataObject) -> None:
    text = list(TEXT)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[slice(at, at + data.draw(st.integers(0, 3)))] = data.draw(st.text(max_size=3))
    try:
        found = parse_calibration(''.join(text), 'f.yaml')
    except ConfigError:
        return
    assert parse_calibration(format_calibration(found), 'again') == found


def info(**changes: object) -> SimpleNamespace:
    """Return a sensor_msgs/CameraInfo's attributes; arrays as rclpy has them."""
    roi = SimpleNamespace(x_offset=0, y_offset=0, width=0, height=0, do_rectify=False)
    values = {
        'width': 640, 'height': 360, 'distortion_model': 'plumb_bob', 'd': list(D),
        'k': np.array(K), 'r': np.array(IDENTITY),
        'p': np.array(P), 'binning_x': 0, 'binning_y': 0, 'roi': roi,
    }  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


def test_the_message_that_ros_has_is_filled() -> None:
    messages = pytest.importorskip('sensor_msgs.msg')
    message, made = (
        messages.CameraInfo(),
        replace(GOOD, binning_x=2, binning_y=2, roi=RegionOfInterest(10, 20, 300, 200, True)),
    )
    made.fill(message)
    assert tuple(message.k) == K and tuple(message.p) == P and tuple(message.d) == D
    assert from_camera_info(message, 'front') == made


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'width': 0}, 'image_width is 0'),
        ({'distortion_model': 'omni'}, "distortion_model is 'omni'; it must be one of plumb_bob"),
        ({'distortion_model': 'fisheye'}, 'has 5 values; equidistant has 4'),
        ({'d': [0.1] * 6}, 'distortion_coefficients has 6 values'),
        ({'k': [math.nan] * 9}, 'camera_matrix has the value nan'),
        ({'p': [1.0] * 11}, r'projection_matrix has 11 values; it must have 12 \(3x4\)'),
    ],
)
def test_a_camera_info_that_can_not_be_is_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        from_camera_info(info(**changes), 'front')


def test_a_camera_info_of_an_old_calibrator_has_the_model_of_today() -> None:
    made = from_camera_info(info(distortion_model='fisheye', d=list(D[:4])), 'front')
    assert made.distortion_model == 'equidistant'


def test_uncalibrated_is_a_size_and_zeros() -> None:
    made = uncalibrated(640, 360)
    assert not made.calibrated and GOOD.calibrated
    assert (made.width, made.height, made.k, made.d) == (640, 360, (0.0,) * 9, ())
    assert parse_calibration(format_calibration(made), 'x') == made


@pytest.mark.parametrize(
    ('changes', 'size', 'fits'),
    [
        ({}, (640, 360), True),
        ({}, (1280, 720), False),
        ({}, (360, 640), False),
        ({'binning_x': 2, 'binning_y': 2}, (320, 180), True),
        ({'roi': RegionOfInterest(0, 0, 300, 200)}, (300, 200), True),
        (
            {'roi': RegionOfInterest(0, 0, 300, 200), 'binning_x': 2, 'binning_y': 2},
            (150, 100),
            True,
        ),
        ({'roi': RegionOfInterest(0, 0, 300, 200)}, (320, 200), False),
    ],
)
def test_the_size_of_pictures_that_it_is_for(
    changes: dict[str, object], size: tuple[int, int], fits: bool
) -> None:
    made = Calibration(640, 360, 'front', 'plumb_bob', D, K, IDENTITY, P, **changes)
    text = made.size_mismatch(*size, 'f.yaml')
    assert (text is None) is fits
    if text:
        assert 'f.yaml' in text and '640x360' in text and f'{size[0]}x{size[1]}' in text
