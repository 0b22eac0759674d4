"""model.yaml as a text: what YAML 1.1 takes for something else than it looks like, and what is written twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from npu.manifest_kit import AXL, GOOD, written

from zc_perception.errors import ConfigError
from zc_perception.npu.manifest import load_manifest, parse_yaml

HOG = 'engine: opencv_hog\nhead: boxes\ninput: {resize: none}\n'


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('1e-1', 0.1),
        ('1E-1', 0.1),
        ('5e-1', 0.5),
        ('.5e0', 0.5),
        ('1.e-1', 0.1),
        ('+1e-2', 0.01),
        ('0.25', 0.25),
        ('1', 1.0),
        ('25.0e-2', 0.25),
    ],
)
def test_numbers_with_an_exponent_are_numbers(tmp_path: Path, text: str, value: float) -> None:
    path = written(tmp_path, f'{HOG}classes: [person]\nscore_threshold: {text}\n')
    assert load_manifest(path).score_threshold == value


@pytest.mark.parametrize('text', ['1e', 'e1', '1e-', '0x1e', '1e1x', '-e1', '.e1', '1e1.0', '1 e1', 'a1e1'])
def test_what_only_looks_like_one_stays_what_it_was(text: str) -> None:
    assert parse_yaml(f'k: {text}') == yaml.safe_load(f'k: {text}')


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(['e', 'E', 'g']))
def test_every_number_that_python_writes_is_read_again(value: float, form: str) -> None:
    text = format(value, f'.17{form}')
    assert parse_yaml(f'k: {text}') == {'k': float(text)}


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_everything_else_is_read_as_ever(values: Any) -> None:
    text = yaml.safe_dump(values, default_style='"')
    assert parse_yaml(text) == yaml.safe_load(text) == values


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('name: a\nname: b\n', "key 'name' stands in line 1 and again in line 2; leave one out"),
        (HOG + 'classes: [a]\n"head": yolov8\n', "key 'head' stands in line 2 and again in line 5"),
        ('input:\n  width: 64\n  height: 32\n  width: 64\n', "key 'width' stands in line 2 and again in line 4"),
        ('variants:\n- {engine: axl, model_id: 1, model_id: 1}\n', "key 'model_id' stands in line 2 and again in line 2"),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_both_lines(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_manifest(path)
    assert path in str(caught.value) and message in str(caught.value) and '\n' not in str(caught.value)


def test_a_merged_key_may_be_replaced_and_siblings_may_have_the_same(tmp_path: Path) -> None:
    text = 'a: &a {x: 1, y: 2}\nb: &b\n  <<: *a\n  x: 3\nc: {<<: [*a, *b], y: 4}\nd: [{x: 1}, {x: 1}]\ne: *b\n'
    assert parse_yaml(text) == yaml.safe_load(text)
    assert parse_yaml(text)['c'] == {'x': 1, 'y': 4} and parse_yaml(text)['b'] == {'x': 3, 'y': 2}


@pytest.mark.parametrize(
    ('line', 'hint'),
    [
        ('classes: [no, yes]', 'quote it: YAML takes yes, no, on, off, true and false for booleans'),
        ('classes: [car, off]', 'quote it: YAML takes yes, no, on, off, true and false for booleans'),
        ('classes: [car, 5]', "quote it ('5'): YAML takes it for a number"),
        ('classes: [5e3]', "quote it ('5000.0'): YAML takes it for a number"),
        ('classes: [a]\nname: on', 'quote it: YAML takes yes, no, on, off, true and false for booleans'),
        ('classes: [a]\nname: 2026-01-31', "quote it ('2026-01-31'): YAML takes it for a date"),
    ],
)
def test_a_text_without_its_quotes_is_told_of_them(tmp_path: Path, line: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_manifest(written(tmp_path, f'{HOG}{line}\n'))
    assert str(caught.value).endswith(f'; {hint}') and '\n' not in str(caught.value)


@pytest.mark.parametrize(('key', 'value'), [('score_threshold', True), ('max_detections', False), ('outputs', True), ('classes', [''])])
def test_what_is_no_text_gets_no_such_advice(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load_manifest(written(tmp_path, {**GOOD, key: value}))
    assert 'quote' not in str(caught.value)


def test_what_was_written_by_a_program_is_read(tmp_path: Path) -> None:
    (tensor,) = load_manifest(written(tmp_path, {**AXL, 'outputs': [{**AXL['outputs'][0], 'scale': 3.0518509475997192e-05}]})).tensors
    assert tensor.scale == (3.0518509475997192e-05,)
