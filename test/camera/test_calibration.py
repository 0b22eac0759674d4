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

"""Calibration files: from the standard calibrator, for its parsers, and damaged ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import math
import os
from pathlib import Path
import stat
from types import SimpleNamespace

import cv2
from hypothesis import example, given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest
import yaml

from zc_perception.camera import calibration
from zc_perception.camera.calibration import (
    Calibration,
    calibration_path,
    camera_name_of,
    CameraInfoStore,
    DISTORTION_COEFFICIENTS,
    format_calibration,
    from_camera_info,
    load_calibration,
    parse_calibration,
    RegionOfInterest,
    ros_home,
    save_calibration,
    uncalibrated,
)
from zc_perception.errors import ConfigError

K = (415.12614, 0.0, 325.52373, 0.0, 410.49986, 180.14929, 0.0, 0.0, 1.0)
P = (380.5, 0.0, 322.25, 0.0, 0.0, 401.125, 179.5, 0.0, 0.0, 0.0, 1.0, 0.0)
D = (-0.017697, 1e-05, 0.005751, -0.000139, 0.0)
IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
GOOD = Calibration(640, 360, 'front', 'plumb_bob', D, K, IDENTITY, P)


def calibrator_text(
    name: str, model: str, d: list[float], *matrices: NDArray[np.float64]
) -> str:
    """Return ost.yaml as the standard calibrator writes it, with NumPy's formatting."""

    def matrix(name: str, values: NDArray[np.float64], precision: int) -> str:
        text = np.array2string(values, precision=precision, suppress_small=True, separator=', ')
        text = text.replace('[', '').replace(']', '').replace('\n', '\n        ')
        rows, columns = values.shape
        return f'{name}:\n  rows: {rows}\n  cols: {columns}\n  data: [{text}]'

    k, r, p = matrices
    return '\n'.join([
        'image_width: 640', 'image_height: 360', f'camera_name: {name}',
        matrix('camera_matrix', k, 5), f'distortion_model: {model}',
        'distortion_coefficients:', '  rows: 1', f'  cols: {len(d)}',
        '  data: [' + ', '.join(f'{value:8f}' for value in d) + ']',
        matrix('rectification_matrix', r, 8), matrix('projection_matrix', p, 5), '',
    ])  # fmt: skip


@pytest.mark.parametrize(
    ('model', 'count'), [('plumb_bob', 5), ('rational_polynomial', 14), ('equidistant', 4)]
)
def test_what_the_calibrator_writes_is_read_to_the_last_printed_digit(
    model: str, count: int
) -> None:
    k = np.array([[523.123456, 0, 317.98765], [0, 521.4, 181.5], [0, 0, 1]])
    r = np.array([[0.99991, -0.00312345, 0.01], [0.0031, 0.999995, -0.000004], [-0.01, 0, 0.9999]])
    p = np.array([[480.0, 0, 320, -57.25], [0, 480.0, 180, 0], [0, 0, 1, 0]])
    d = list(np.random.default_rng(count).uniform(-0.5, 0.5, count))
    text = calibrator_text('narrow_stereo/left', model, d, k, r, p)
    assert '0.     ' in text and '1.' in text, "NumPy's printing is what it was"
    found = parse_calibration(text, 'ost.yaml')
    said = found.width, found.height, found.camera_name, found.distortion_model
    assert said == (640, 360, 'narrow_stereo/left', model)
    parts = (found.k, k, 6e-6), (found.r, r, 6e-9), (found.p, p, 6e-6), (found.d, d, 6e-7)
    for values, wanted, most in parts:
        assert np.allclose(values, np.ravel(wanted), atol=most)
    assert found.notices == ()
    assert parse_calibration(format_calibration(found), 'again') == found


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


@settings(max_examples=60)
@given(calibrations())
@example(replace(GOOD, p=(1e-05, 1e16, 5e-324, -0.0, *P[4:])))
def test_every_number_comes_back_bit_by_bit(calibration: Calibration) -> None:
    text = format_calibration(calibration)
    found = parse_calibration(text, 'x')
    assert found == calibration
    signs = [[math.copysign(1, value) for value in made.p] for made in (found, calibration)]
    assert signs[0] == signs[1], 'minus zero, too'
    # PyYAML reads YAML 1.1, in which 1e-05 is text: the file must contain numbers.
    plain = yaml.safe_load(text)
    assert tuple(plain['projection_matrix']['data']) == calibration.p
    assert all(type(value) is float for value in plain['camera_matrix']['data'])


TEXT = format_calibration(GOOD)
def test_unknown_keys_are_told_and_harmless() -> None:
    found = parse_calibration(TEXT.replace('camera_name', 'camera_nmae'), 'f.yaml')
    assert found == replace(GOOD, camera_name='')
    assert found.notices == (
        "'f.yaml': key 'camera_nmae' is unknown and ignored; did you mean 'camera_name'?",
    )


D4 = '[-0.02, 0.01, -0.003, 0.0004]'
D8 = '[0.1, 0.2, 0.003, 0.0004, 0.5, 0.6, 0.7, 0.8]'


def with_model(lines: str, data: str, columns: int) -> str:
    """Return a calibration's text with these model lines and coefficients."""
    text = TEXT.replace('distortion_model: plumb_bob\n', lines)
    before, _, rest = text.partition('distortion_coefficients:')
    rest = rest[slice(rest.index('rectification_matrix'), None)]
    new = f'\n  rows: 1\n  cols: {columns}\n  data: {data}\n'
    return f'{before}distortion_coefficients:{new}{rest}'


@pytest.mark.parametrize(('lines', 'data', 'columns', 'model'), [
    # camera_calibration from November 2019 to August 2020
    ('camera_model: fisheye\n', D4, 4, 'equidistant'),
    # camera_calibration of Foxy and Galactic, which always writes 'cols: 5'
    ('distortion_model: rational_polynomial\n', D8, 5, 'rational_polynomial'),
    # written by hand
    ('distortion_model: EQUIDISTANT\n', D4, 4, 'equidistant'),
    ('camera_model: pinhole\ndistortion_model: equidistant\n', D4, 4, 'equidistant'),
    # OpenCV's own calibrator, completed
    ('fisheye_model: 1\n', D4, 4, 'equidistant'),
    ('fisheye_model: 0\ndistortion_model: plumb_bob\n', D4, 4, 'plumb_bob'),
])  # fmt: skip
def test_models_as_other_versions_and_programs_write_them(
    lines: str, data: str, columns: int, model: str
) -> None:
    found = parse_calibration(with_model(lines, data, columns), 'f.yaml')
    assert (found.distortion_model, list(found.d)) == (model, yaml.safe_load(data))
    assert found.notices == ()
    assert parse_calibration(format_calibration(found), 'again') == found


KALIBR = 'cam0:\n  camera_model: pinhole\n  intrinsics: [458.6, 457.2, 367.2, 248.3]\n'
INI = '# oST version 5.0 parameters\n\n\n[image]\n\nwidth\n640\n\nheight\n480\n'


def opencv_file(suffix: str) -> str:
    """Return the file that OpenCV's example of a calibrator writes."""
    storage = cv2.FileStorage(suffix, cv2.FILE_STORAGE_WRITE | cv2.FILE_STORAGE_MEMORY)
    storage.write('image_width', 640)
    storage.write('image_height', 360)
    storage.write('camera_matrix', np.reshape(K, (3, 3)))
    storage.write('distortion_coefficients', np.reshape(D, (5, 1)))
    storage.write('avg_reprojection_error', 0.25)
    return str(storage.releaseAndGetString())


BAD = {
    'no YAML': ('{[', "'f.yaml' is no YAML"),
    'nothing': ('', "'f.yaml' is no calibration: it has no keys"),
    'misspelt key': (
        TEXT.replace('distortion_coefficients', 'distortion_coefficents'),
        "is it named 'distortion_coefficents'?",
    ),
    'transposed': (
        TEXT.replace('rows: 3\n  cols: 4', 'rows: 4\n  cols: 3'),
        'projection_matrix is 4x3; it must be 3x4',
    ),
    'nan': (
        TEXT.replace('415.12614', '.nan'),
        "camera_matrix.data has the value '.nan'; all values must be finite numbers",
    ),
    'unknown model': (
        TEXT.replace('plumb_bob', 'plum_bob'),
        "it must be one of plumb_bob, rational_polynomial, equidistant; did you mean 'plumb_bob'?",
    ),
    'wrong count': (
        TEXT.replace('plumb_bob', 'equidistant'),
        'distortion_coefficients has 5 values; equidistant has 4',
    ),
    'roi unsure': (
        TEXT + 'roi: {do_rectify: maybe}\n',
        "roi.do_rectify is 'maybe'; it must be true or false",
    ),
    'endless': ('a' * ((1 << 20) + 1), 'has 1048577 characters'),
    'kalibr': (
        KALIBR,
        "key 'image_width' is missing, because this file is a camera chain of Kalibr: write its",
    ),
    'ini': (
        INI,
        'is in the INI format of ROS 1; use the .yaml file that camera_calibration wrote',
    ),
    'opencv': (
        opencv_file('.yml'),
        "'rectification_matrix' is missing, as in OpenCV's own files: for",
    ),
    'xml': (
        opencv_file('.xml'),
        'is XML; a calibration is a YAML file with the keys image_width',
    ),
    'another model': (
        with_model('camera_model: omni\n', D4, 4),
        "camera_model is 'omni'; it must be one of plumb_bob, r",
    ),
    'two models': (
        with_model('camera_model: fisheye\ndistortion_model: plumb_bob\n', D4, 4),
        "two distortion models: distortion_model 'plumb_bob', camera_model 'equidistant'",
    ),
    'model of 8': (
        with_model('distortion_model: plumb_bob\n', D8, 8),
        "8 values; plumb_bob has 4 or 5; distortion_model 'rational_polynomial' has 8",
    ),
    'columns': (
        with_model('distortion_model: plumb_bob\n', D4, 5),
        'has 4 values; 1x5 needs 5',
    ),
    'too few': (
        with_model('distortion_model: fisheye\n', '[1.0]', 5),
        'has 1 values; equidistant has 4',
    ),
    'model no text': (
        with_model('distortion_model: [a]\n', D4, 4),
        "distortion_model is ['a']; it must be text",
    ),
}


@pytest.mark.parametrize('case', BAD)
def test_what_is_wrong_is_named_with_file_key_value_and_what_is_allowed(case: str) -> None:
    text, message = BAD[case]
    with pytest.raises(ConfigError) as caught:
        parse_calibration(text, 'f.yaml')
    assert message in str(caught.value) and "'f.yaml'" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_completed_file_of_opencv_has_its_values() -> None:
    text = opencv_file('.yml')
    assert text.startswith('%YAML:1.0\n---\n') and '!!opencv-matrix' in text
    rest = TEXT[slice(TEXT.index('rectification_matrix'), None)]
    found = parse_calibration(f'{text}distortion_model: plumb_bob\n{rest}', 'f.yaml')
    assert (found.k, found.d, found.p) == (K, D, P)


def project(made: Calibration, points: NDArray[np.float64]) -> NDArray[np.float64]:
    picture, _ = cv2.projectPoints(
        points, np.zeros(3), np.zeros(3), np.reshape(made.k, (3, 3)), np.array(made.d)
    )
    return np.reshape(picture, (-1, 2))


@pytest.mark.parametrize('size', [(320, 180), (1920, 1080)])
def test_a_scaled_calibration_sees_points_where_a_scaled_picture_shows_them(
    size: tuple[int, int],
) -> None:
    right = replace(GOOD, k=(*K[:1], 0.5, *K[2:]), p=(*P[:3], -57.25, *P[4:]))
    scaled = right.scaled(*size)
    assert (scaled.width, scaled.height, scaled.picture) == (*size, size)
    points = np.random.default_rng(1).uniform([-1, -0.5, 1], [1, 0.5, 3], (50, 3))
    scale = np.array([size[0] / 640, size[1] / 360])
    # Both pictures have the same edges; pixel centres are half a pixel away from them.
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
    with pytest.raises(ConfigError, match='1x360 and 320x180 have different aspect ratios'):
        replace(GOOD, binning_x=1000).scaled(320, 180)


@settings(max_examples=100)
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


def test_the_message_that_ros_has_is_filled() -> None:
    message = pytest.importorskip('sensor_msgs.msg').CameraInfo()
    region = RegionOfInterest(10, 20, 300, 200, True)
    made = replace(GOOD, binning_x=2, binning_y=2, roi=region)
    made.fill(message)
    assert tuple(message.k) == K and tuple(message.p) == P and tuple(message.d) == D
    assert from_camera_info(message, 'front') == made


@pytest.mark.parametrize(('changes', 'message'), [
    ({'width': 0}, 'image_width is 0'),
    ({'distortion_model': 'omni'}, "distortion_model is 'omni'; it must be one of plumb_bob"),
    ({'k': [math.nan] * 9}, 'camera_matrix has the value nan'),
    ({'binning_x': 70000}, 'binning_x is 70000; it must be an integer from 0 to 65535'),
    ({'roi': RegionOfInterest(0, 1 << 16, 8, 8)}, 'roi.y_offset is 65536; it must be an integer'),
    ({'p': [1.0] * 11}, r'projection_matrix has 11 values; it must have 12 \(3x4\)'),
])  # fmt: skip
def test_a_camera_info_that_can_not_be_is_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        from_camera_info(SimpleNamespace(**{**vars(GOOD), **changes}), 'front')


# Calibrations on disk: URLs, files, and writing that never leaves half a file.

pytestmark = pytest.mark.usefixtures('no_fd_leak')
HOME = {'HOME': '/h'}


def package_folder(name: str) -> str:
    if name != 'robot':
        raise LookupError(name)
    return '/opt/share/robot'


@pytest.mark.parametrize(('url', 'environment', 'expected'), [
    ('', {'HOME': '/h', 'ROS_HOME': '/r'}, '/r/camera_info/front_left.yaml'),
    ('file:///etc/cam.yaml', HOME, '/etc/cam.yaml'),
    ('file://${ROS_HOME}/x/${NAME}-${NAME}.yml', HOME, '/h/.ros/x/front_left-front_left.yml'),
    ('package://robot/calibration/${NAME}.yaml', HOME,
     '/opt/share/robot/calibration/front_left.yaml'),
    ('FILE:///x.yaml', HOME, '/x.yaml'),
])  # fmt: skip
def test_urls(url: str, environment: dict[str, str], expected: str) -> None:
    assert calibration_path(
        url, 'front/left', package_folder=package_folder, environment=environment
    ) == Path(expected)


@pytest.mark.parametrize(('url', 'message'), [
    ('http://x/y.yaml', 'it must begin with file:// or package://'),
    ('relative.yaml', 'a file URL has an absolute path'),
    ('file:///x/${HOME}.yaml',
     r"variable '\$\{HOME\}' is unknown; known are \$\{NAME\}, \$\{ROS_HOME\}"),
    ('package://robot', 'a package URL is package://PACKAGE/path'),
    ('package://rowboat/x.yaml', "there is no ROS package 'rowboat' in this environment"),
    ('package://robot/../../etc/passwd', "without '..'"),
])  # fmt: skip
def test_urls_that_can_not_be_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        calibration_path(url, 'front', package_folder=package_folder, environment=HOME)


def test_names_and_home() -> None:
    name = camera_name_of('Integrated Camera: v1 (usb-0000:00:14.0)')
    assert name == 'Integrated_Camera_v1_usb_0000_00_14_0'
    assert camera_name_of('') == camera_name_of('//') == 'camera'
    assert ros_home({'HOME': '/h', 'ROS_HOME': ''}) == Path('/h/.ros')


def test_a_file_keeps_its_mode_and_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / 'new' / 'folders' / 'real.yaml', tmp_path / 'link.yaml'
    save_calibration(real, uncalibrated(640, 360))
    assert stat.S_IMODE(real.stat().st_mode) == 0o644
    real.chmod(0o664)
    link.symlink_to(real)
    save_calibration(link, GOOD)
    assert link.is_symlink() and load_calibration(real) == GOOD
    assert stat.S_IMODE(real.stat().st_mode) == 0o664
    assert os.listdir(real.parent) == ['real.yaml']


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / 'front.yaml'
    save_calibration(path, GOOD)

    def full(fd: int) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(calibration.os, 'fsync', full)
    with pytest.raises(
        ConfigError, match=r"calibration '.*front.yaml' can't be written: No space left on device"
    ):
        save_calibration(path, uncalibrated(640, 360))
    assert load_calibration(path) == GOOD and os.listdir(tmp_path) == ['front.yaml']


def test_files_that_can_and_can_not_be_read(tmp_path: Path) -> None:
    marked = b'\xef\xbb\xbf%YAML:1.0\r\n---\r\n' + format_calibration(GOOD).encode()
    (tmp_path / 'marked').write_bytes(marked)
    assert load_calibration(tmp_path / 'marked') == GOOD, 'it has a byte order mark'
    with pytest.raises(FileNotFoundError):
        load_calibration(tmp_path / 'none.yaml')
    os.mkfifo(tmp_path / 'pipe')
    for path in (tmp_path, tmp_path / 'pipe', Path('/dev/zero')):
        with pytest.raises(
            ConfigError, match=f"calibration '{path}' is no file; set 'camera_info_url' to a file"
        ):
            load_calibration(path)
    (tmp_path / 'binary').write_bytes(b'\xff\xfe\x00')
    with pytest.raises(ConfigError, match='is no text in UTF-8'):
        load_calibration(tmp_path / 'binary')
    with (tmp_path / 'endless').open('wb') as file:
        file.truncate(1 << 32)
    with pytest.raises(ConfigError, match='characters; a calibration file has at most'):
        load_calibration(tmp_path / 'endless')


def test_a_camera_without_a_file_is_uncalibrated_and_says_so(tmp_path: Path) -> None:
    def opened() -> CameraInfoStore:
        return CameraInfoStore('', 'front', (640, 360), environment={'HOME': str(tmp_path)})

    store = opened()
    assert store.current == uncalibrated(640, 360)
    path = f'{tmp_path}/.ros/camera_info/front.yaml'
    (notice,) = store.notices
    assert notice == (
        f"the camera is not calibrated: there is no '{path}'; run camera_calibration, or set "
        "'camera_info_url'"
    )
    assert not store.wrong, 'many use none'
    store.replace(GOOD)
    assert store.current == GOOD and store.notices == () and not store.wrong
    assert opened().current == GOOD
    save_calibration(Path(path), uncalibrated(640, 360))
    assert opened().current == uncalibrated(640, 360)
    assert 'has a camera matrix of zeros' in opened().notices[0]


def test_another_size_and_another_name_are_told_and_nobody_computes_with_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / 'c.yaml'
    path.write_text(format_calibration(GOOD))
    store = CameraInfoStore(f'file://{path}', 'rear', (1280, 720))
    assert store.current == uncalibrated(1280, 720)
    size, name = store.notices
    assert str(path) in size and '640x360' in size and '1280x720' in size
    assert "named 'front', but this camera's name is 'rear'" in name
    assert size.count("calibrate at the camera's size") == 1
    assert "correct 'camera_name'" in name and store.wrong
    assert store.notices == tuple('; '.join(trouble) for trouble in store.troubles)
    store.resize(640, 360)
    assert store.current == GOOD and len(store.notices) == 1
    store.resize(800, 600)
    assert store.current == uncalibrated(800, 600)
    lensless = CameraInfoStore('', 'rear', (0, 0), environment={'HOME': str(tmp_path)})
    lensless.resize(640, 360, has_lens=False)
    assert lensless.notices == () and lensless.current == uncalibrated(640, 360)


@pytest.mark.parametrize('named', [True, False])
@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'', 'is no calibration: it has no keys'),  # after a power cut
        (b'\0' * 512, 'is no YAML'),  # after a power cut on some file systems
        (b'\xff\xd8\xff\xe0\0\x10JFIF', 'is no text in UTF-8'),
    ],
)
def test_a_bad_file_costs_the_calibration_and_a_good_one_replaces_it(
    content: bytes, message: str, named: bool, tmp_path: Path
) -> None:
    path = tmp_path / '.ros' / 'camera_info' / 'front.yaml'
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    url, home = str(path) if named else '', {'HOME': str(tmp_path)}
    store = CameraInfoStore(url, 'front', (640, 360), environment=home)
    assert store.current == uncalibrated(640, 360)
    assert message in store.failure and str(path) in store.failure
    (notice,) = store.notices
    assert notice.startswith('the camera counts as not calibrated: ') and store.failure in notice
    assert notice.endswith('; correct the file, or run camera_calibration')
    store.resize(1280, 720)
    assert store.current == uncalibrated(1280, 720) and message in store.failure
    store.resize(640, 360)
    store.replace(GOOD)
    assert (store.current, store.failure, store.notices) == (GOOD, '', ())
    assert load_calibration(path) == GOOD


@pytest.mark.parametrize(
    ('name', 'make'),
    [
        ('folder', Path.mkdir),
        ('pipe', os.mkfifo),
        ('file/c.yaml', lambda path: path.parent.touch()),
    ],
)
def test_what_is_no_file_is_neither_read_nor_written(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / name
    make(path)
    store = CameraInfoStore(str(path), 'front', (640, 360))
    assert store.current == uncalibrated(640, 360) and str(path) in store.failure
    with pytest.raises(ConfigError, match=r"is no file; set|can't be written: "):
        store.replace(GOOD)
    assert store.current == uncalibrated(640, 360) and store.failure


def test_a_package_that_is_not_there_costs_the_calibration(tmp_path: Path) -> None:
    url = 'package://rowboat/c.yaml'
    store = CameraInfoStore(url, 'front', (640, 360), package_folder=package_folder)
    assert store.current == uncalibrated(640, 360) and store.place == url
    (notice,) = store.notices
    assert "there is no ROS package 'rowboat' in this environment" in notice
    assert notice.endswith("; correct 'camera_info_url'")
    with pytest.raises(ConfigError, match="there is no ROS package 'rowboat'"):
        store.replace(GOOD)


def test_a_calibration_of_another_size_is_scaled_where_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / 'c.yaml'
    save_calibration(path, GOOD)
    store = CameraInfoStore(str(path), 'front', (320, 180), rescale=True)
    assert store.current == GOOD.scaled(320, 180) and store.notices == () and not store.wrong
    assert CameraInfoStore(str(path), 'front', (320, 180)).notices == (
        f"calibration '{path}' is for 640x360 pictures, the camera gives 320x180: camera_info is "
        "published without the calibration; calibrate at the camera's size, run the camera at the "
        "calibration's size, set 'rescale_camera_info' if pictures of both sizes show the same "
        "view, or set 'camera_info_url' to a file that fits",
    )
    store.resize(640, 480)
    (notice,) = store.notices
    assert store.current == uncalibrated(640, 480) and store.wrong
    assert (
        "without the calibration, because the calibration can't be scaled: 640x360 and 640x480 "
        'have different aspect ratios' in notice
    )
    assert 'rescale_camera_info' not in notice
    store.replace(replace(GOOD, width=640, height=480))
    assert (store.current.width, store.current.k, store.notices) == (640, GOOD.k, ())
