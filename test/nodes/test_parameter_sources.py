"""Parameters that miss the node they were meant for."""

from __future__ import annotations

from pathlib import Path

import pytest

from zc_perception.errors import ConfigError
from zc_perception.nodes.parameter_sources import check_parameter_sources, keys_for_any_node

NODES = ['/capture', '/inference', '/overlay']
FRONT = ['/front/capture', '/front/inference', '/front/overlay']


def _file(folder: Path, *sections: str) -> list[str]:
    path = folder / 'parameters.yaml'
    path.write_text(''.join(f'{s}:\n  ros__parameters:\n    width: 640\n' for s in sections))
    return ['perception', '--ros-args', '--params-file', str(path)]


@pytest.mark.parametrize(
    ('section', 'nodes'),
    [
        ('capture', NODES),
        ('/capture', NODES),
        ('/**/capture', NODES),
        ('/**/capture', FRONT),
        ('/front/capture', FRONT),
        ('front/capture', FRONT),
        ('/*/capture', FRONT),
        ('/**', FRONT),
        ('/front/*', FRONT),
        ('lidar_driver', NODES),
        ('/rear/planner', FRONT),
    ],
)
def test_sections_that_reach_a_node_or_are_somebody_elses_pass(section: str, nodes: list[str], tmp_path: Path) -> None:
    check_parameter_sources(_file(tmp_path, section), nodes)


@pytest.mark.parametrize(
    ('section', 'nodes', 'message'),
    [
        ('capture', FRONT, r"'capture' does not match node '/front/capture'; write '/\*\*/capture'"),
        ('/rear/capture', FRONT, "'rear/capture' does not match node '/front/capture'"),
        ('/**/captur', NODES, "no node 'captur' here; did you mean 'capture'"),
        ('inferense', NODES, "no node 'inferense' here; did you mean 'inference'"),
    ],
)
def test_sections_that_miss_are_refused_with_the_right_spelling(section: str, nodes: list[str], message: str, tmp_path: Path) -> None:
    argv = _file(tmp_path, section)
    with pytest.raises(ConfigError, match=message) as refused:
        check_parameter_sources(argv, nodes)
    assert argv[-1] in str(refused.value)


def test_nested_namespaces_are_read(tmp_path: Path) -> None:
    path = tmp_path / 'nested.yaml'
    path.write_text('front:\n  capture:\n    ros__parameters: {width: 640}\n  captura:\n    ros__parameters: {width: 640}\n')
    with pytest.raises(ConfigError, match="no node 'captura' here"):
        check_parameter_sources(['--params-file', str(path)], FRONT)


@pytest.mark.parametrize(
    ('argument', 'nodes', 'message'),
    [
        ('capure:framerate:=7.0', NODES, "no node 'capure' here; did you mean 'capture'"),
        ('capture:framerate:=7.0', FRONT, "does not match node '/front/capture'"),
    ],
)
def test_arguments_that_miss_are_refused_too(argument: str, nodes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_parameter_sources(['perception', '--ros-args', '-p', argument], nodes)


@pytest.mark.parametrize('argument', ['capture:framerate:=7.0', 'framerate:=7.0', 'video:=/a:b/c.avi'])
def test_arguments_that_reach_a_node_pass(argument: str) -> None:
    check_parameter_sources(['perception', '--ros-args', '-p', argument], NODES)


@pytest.mark.parametrize('text', ['', '# later', '{}', 'capture: {}', 'capture: {ros__parameters: {}}'])
def test_files_without_parameters_say_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / 'odd.yaml'
    path.write_text(text)
    check_parameter_sources(['--params-file', str(path)], NODES)
    assert keys_for_any_node(['--params-file', str(path)], '/capture') == frozenset()


@pytest.mark.parametrize('text', ['[]', '5', 'a: 1', 'capture: text', 'capture: {ros__parameters: {a: {}}}'])
def test_files_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / 'odd.yaml'
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"parameter file '.*odd\.yaml'"):
        check_parameter_sources(['--params-file', str(path)], NODES)


def test_keys_for_any_node_are_those_that_were_not_meant_for_it(tmp_path: Path) -> None:
    first, second = tmp_path / 'a.yaml', tmp_path / 'b.yaml'
    first.write_text(
        '/**:\n  ros__parameters: {everywhere: 1, meant: 1, by_argument: 1, nested: 1, other: 1, '
        'qos_overrides: {/image: {publisher: {depth: 3}}}}\n'
        '/front/*:\n  ros__parameters: {in_front: 1}\n'
    )
    second.write_text('/**/capture:\n  ros__parameters: {meant: 2}\nfront:\n  inference:\n    ros__parameters: {nested: 1}\n')
    argv = ['x', '--ros-args', '--params-file', str(first), '--params-file', str(second), '-p', 'by_argument:=2', '-p', 'capture:other:=3']
    always = {'everywhere', 'qos_overrides./image.publisher.depth'}
    assert keys_for_any_node(argv, '/capture') == always | {'nested'}
    assert keys_for_any_node(argv, '/front/capture') == always | {'nested', 'in_front', 'other'}
    assert keys_for_any_node(argv, '/front/inference') == always | {'meant', 'in_front', 'other'}
    assert keys_for_any_node([], '/capture') == frozenset()
