"""Calibration files: those that the standard calibrator and its C++ parsers write, those that people spoil, and what comes back."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from zc_perception.camera.calibration import (
    DISTORTION_COEFFICIENTS,
    Calibration,
    RegionOfInterest,
    format_calibration,
    from_camera_info,
    parse_calibration,
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
    """As the standard calibrator lays out ost.yaml: NumPy's own printing of matrices, over several lines, with its bare points."""

    def matrix(values: NDArray[np.float64], precision: int) -> str:
        text = np.array2string(values, precision=precision, suppress_small=True, separator=', ')
        return '[' + text.replace('[', '').replace(']', '').replace('\n', '\n        ') + ']'

    return '\n'.join([
        'image_width: 640', 'image_height: 360', f'camera_name: {name}',
        'camera_matrix:', '  rows: 3', '  cols: 3', '  data: ' + matrix(k, 5),
        f'distortion_model: {model}',
        'distortion_coefficients:', '  rows: 1', f'  cols: {len(d)}', '  data: [' + ', '.join(f'{value:8f}' for value in d) + ']',
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


@pytest.mark.parametrize(
    'name',
    [
        '0815',
        'no',
        'null',
        '1e3',
        '',
        'front left',
        'a: b',
        '"',
        "it's",
        '#1',
        'ü\n',
        '~',
        'narrow_stereo/left',
    ],
)
def test_a_name_stays_a_name_for_us_and_for_any_yaml_reader(name: str) -> None:
    text = format_calibration(Calibration(640, 360, name, 'plumb_bob', D, K, IDENTITY, P))
    assert parse_calibration(text, 'x').camera_name == name
    assert yaml.safe_load(text)['camera_name'] == name


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
        binning_x=draw(st.integers(0, 8)), binning_y=draw(st.integers(0, 8)), roi=draw(st.sampled_from((RegionOfInterest(), region))),
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
    'no keys': ('just words', "'f.yaml' is no calibration: it has no keys"),
    'nothing': ('', "'f.yaml' is no calibration: it has no keys"),
    'a list': ('- 1\n- 2\n', 'it has no keys'),
    'missing key': (TEXT.replace('image_width: 640\n', ''), "key 'image_width' is missing"),
    'misspelt key': (
        TEXT.replace('distortion_coefficients', 'distortion_coefficents'),
        "is it what is called 'distortion_coefficents'?",
    ),
    'no size': (
        TEXT.replace('640', '0', 1),
        "image_width is '0'; it must be an integer from 1 to 65535",
    ),
    'huge size': (TEXT.replace('640', '9' * 30, 1), 'it must be an integer from 1 to 65535'),
    'size in words': (
        TEXT.replace('640', 'wide', 1),
        "image_width is 'wide'; it must be an integer",
    ),
    'size with a point': (
        TEXT.replace('640', '640.0', 1),
        "image_width is '640.0'; it must be an integer",
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
    'infinite': (
        TEXT.replace('415.12614', '1e999'),
        "camera_matrix.data has the value '1e999'; all must be finite numbers",
    ),
    'python number': (TEXT.replace('415.12614', '4_15.1'), "the value '4_15.1'"),
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
    'wrong count, rational': (
        TEXT.replace('plumb_bob', 'rational_polynomial'),
        'has 5 values; rational_polynomial has 8 or 12 or 14',
    ),
    'matrix as a number': (
        TEXT.replace('camera_matrix:', 'camera_matrix: 5\nother:'),
        "camera_matrix is '5'; it must have the keys rows, cols and data",
    ),
    'nested data': (
        TEXT.replace('[415.12614', '[[415.12614]'),
        'camera_matrix.data has the value',
    ),
    'roi without keys': (TEXT + 'roi: 5\n', "roi is '5'"),
    'roi negative': (TEXT + 'roi: {width: -1}\n', "roi.width is '-1'"),
    'roi unsure': (
        TEXT + 'roi: {do_rectify: maybe}\n',
        "roi.do_rectify is 'maybe'; it must be true or false",
    ),
    'binning in words': (TEXT + 'binning_x: two\n', "binning_x is 'two'"),
    'endless': ('a' * ((1 << 20) + 1), 'has 1048577 characters'),
    'too deep': ('[' * 5000, 'is no YAML'),
}


@pytest.mark.parametrize('case', BAD)
def test_what_is_wrong_is_named_with_file_key_value_and_what_is_allowed(case: str) -> None:
    text, message = BAD[case]
    with pytest.raises(ConfigError) as caught:
        parse_calibration(text, 'f.yaml')
    assert message in str(caught.value) and "'f.yaml'" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_unknown_keys_are_told_and_harmless() -> None:
    found = parse_calibration(TEXT + 'camera_nmae: front\n', 'f.yaml')
    assert found == GOOD
    assert found.notices == (
        "'f.yaml': key 'camera_nmae' is unknown and ignored; did you mean 'camera_name'?",
    )


@settings(max_examples=300)
@given(st.data())
def test_a_spoilt_file_is_read_or_refused_never_worse(data: st.DataObject) -> None:
    text = list(TEXT)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.text(max_size=3))
    try:
        found = parse_calibration(''.join(text), 'f.yaml')
    except ConfigError:
        return
    assert parse_calibration(format_calibration(found), 'again') == found


def info(**changes: object) -> SimpleNamespace:
    """A sensor_msgs/CameraInfo's attributes; arrays as rclpy has them."""
    roi = SimpleNamespace(x_offset=0, y_offset=0, width=0, height=0, do_rectify=False)
    values = {
        'width': 640, 'height': 360, 'distortion_model': 'plumb_bob', 'd': list(D), 'k': np.array(K), 'r': np.array(IDENTITY),
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
        ({'distortion_model': 'fisheye'}, "distortion_model is 'fisheye'"),
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
    made = Calibration(640, 360, 'front', 'plumb_bob', D, K, IDENTITY, P, **changes)  # type: ignore[arg-type]
    text = made.size_mismatch(*size, 'f.yaml')
    assert (text is None) is fits
    if text:
        assert 'f.yaml' in text and '640x360' in text and f'{size[0]}x{size[1]}' in text
