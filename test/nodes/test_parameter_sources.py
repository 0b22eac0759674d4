"""Parameters that miss the node they were meant for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zc_perception.errors import ConfigError
from zc_perception.nodes.params.ros_arguments import check_parameter_sources, keys_by_name, keys_for_any_node

NODES = ['/capture', '/inference', '/overlay']
FRONT = ['/front/capture', '/front/inference', '/front/overlay']


def _file(folder: Path, *sections: str, key: str = 'width') -> list[str]:
    path = folder / 'parameters.yaml'
    path.write_text(''.join(f'{s}:\n  ros__parameters:\n    {key}: 640\n' for s in sections))
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
    assert (
        check_parameter_sources(_file(tmp_path, section, key='beams' if section.endswith(('driver', 'planner')) else 'width'), nodes) == []
    )


def _sections(folder: Path, text: str) -> list[str]:
    path = folder / 'parameters.yaml'
    path.write_text(text)
    return ['capture_node', '--ros-args', '--params-file', str(path)]


@pytest.mark.parametrize(
    ('text', 'nodes', 'meant'),
    [
        (
            '/camera: {ros__parameters: {framerate: 5.0}}',
            NODES,
            "no node 'camera' here, but all that section 'camera' sets .* '/\\*\\*/capture'",
        ),
        ('/**/camera: {ros__parameters: {framerate: 5.0, width: 64}}', FRONT, "section '\\*\\*/camera' sets is a parameter of 'capture'"),
        ('/front/detector: {ros__parameters: {score_threshold: 0.5}}', FRONT, "'front/detector' sets is a parameter of 'inference'"),
        ('/camera: {ros__parameters: {framerate: 5.0, exposure: 3}}', NODES, ''),
        ('/camera: {ros__parameters: {framerate: 5.0, score_threshold: 0.5}}', NODES, ''),
        ('/detector: {ros__parameters: {score_threshold: 0.5}}', ['/capture'], ''),  # no inference node would have it
        ('/camera: {ros__parameters: {use_sim_time: true}}', NODES, ''),
        ('/camera: {ros__parameters: {}}', NODES, ''),
        ('/recorder: {ros__parameters: {shared_memory: true}}', NODES, ''),
        ('/**: {ros__parameters: {framerate: 5.0}}', NODES, ''),
    ],
)
def test_a_section_of_another_name_with_nothing_but_our_keys_is_a_warning(text: str, nodes: list[str], meant: str, tmp_path: Path) -> None:
    argv = _sections(tmp_path, text)
    said = check_parameter_sources(argv, nodes)
    assert len(said) == bool(meant) and all(re.search(meant, sentence) and argv[-1] in sentence for sentence in said), said


@pytest.mark.parametrize(
    ('section', 'nodes', 'message'),
    [
        ('capture', FRONT, r"'capture' does not match node '/front/capture'; write '/\*\*/capture'"),
        ('/*/capture', NODES, r"'\*/capture' does not match node '/capture'; write '/\*\*/capture'"),
        ('/front/capture', ['/truck/front/capture'], r"does not match node '/truck/front/capture'; write '/\*\*/front/capture'"),
        ('/*/front/capture', FRONT, r"write '/\*\*/front/capture'"),
        ('/fornt/capture', FRONT, "'fornt/capture' does not match node '/front/capture'; did you mean 'front'?.* section of its own"),
        ('/**/fornt/capture', ['/truck/front/capture'], "did you mean 'front'?"),
        ('/truk/front/capture', ['/truck/front/capture'], "did you mean 'truck/front'?"),
        ('/frontleft/capture', ['/front_left/capture', '/front_right/capture'], "node '/front_left/capture'; did you mean 'front_left'?"),
        ('/**/captur', NODES, "no node 'captur' here; did you mean 'capture'"),
        ('inferense', NODES, "no node 'inferense' here; did you mean 'inference'"),
    ],
)
def test_sections_that_miss_are_refused_with_the_right_spelling(section: str, nodes: list[str], message: str, tmp_path: Path) -> None:
    argv = _file(tmp_path, section)
    with pytest.raises(ConfigError, match=message) as refused:
        check_parameter_sources(argv, nodes)
    assert argv[-1] in str(refused.value)


CAMERAS = ['/**', '/**/capture', '/**/front/capture', '/**/rear/capture', '/**/inference']


@pytest.mark.parametrize(
    ('sections', 'cameras', 'without', 'elsewhere'),
    [
        (CAMERAS, ['front', 'rear'], [], []),
        (CAMERAS, ['front'], [], []),  # the other section is clearly another camera's
        (CAMERAS, ['truck/front'], [], []),
        (CAMERAS, ['left', 'right'], ['left', 'right'], ['**/front', '**/rear']),
        (CAMERAS, ['front', 'left'], ['left'], ['**/rear']),
        (CAMERAS, [''], [''], ['**/front', '**/rear']),
        (['/cam1/capture'], ['cam0'], ['cam0'], ['cam1']),  # names that differ in a number are different cameras
        (['/front_left/capture'], ['front_right'], ['front_right'], ['front_left']),
        (['/cam_a/capture'], ['cam_b'], ['cam_b'], ['cam_a']),
        (['/car/front/capture'], ['truck/front'], ['truck/front'], ['car/front']),
        (['/truck/capture'], ['truck/front'], ['truck/front'], ['truck']),
        (['/fornt/capture', '/front/capture'], ['front'], [], []),  # not mistyped, for the other is there too
        (['/rear/overlay', '/front/capture'], ['front'], None, []),
    ],
)
def test_cameras_of_a_file_may_be_left_out_and_those_that_it_lacks_are_said(
    sections: list[str], cameras: list[str], without: list[str] | None, elsewhere: list[str], tmp_path: Path
) -> None:
    nodes = [f'/{camera}/{kind}'.replace('//', '/') for camera in cameras for kind in ('capture', 'inference', 'overlay')]
    argv = _file(tmp_path, *sections)
    said = check_parameter_sources(argv, nodes)
    if without is None:
        assert [sentence.split(', and')[0].split(': ')[1] for sentence in said] == ["no section names '/front/overlay'"]
    elif not without:
        assert said == []
    else:
        (sentence,) = said
        missing, others = sentence.removeprefix(f"parameter file '{argv[-1]}': no section names ").split(
            ', and there are sections for nodes that are not here: '
        )
        assert missing == ', '.join(f"'/{camera}/capture'".replace('//', '/') for camera in without)
        assert others == ', '.join(f"'{camera}/capture'" for camera in elsewhere)


def test_several_files_are_judged_together(tmp_path: Path) -> None:
    first, second = tmp_path / 'a.yaml', tmp_path / 'b.yaml'
    for path, space in ((first, 'fornt'), (second, 'front')):
        path.write_text(f'/{space}/capture:\n  ros__parameters: {{width: 640}}\n')
    with pytest.raises(ConfigError, match="did you mean 'front'"):
        check_parameter_sources(['--params-file', str(first)], FRONT)
    assert check_parameter_sources(['--params-file', str(first), '--params-file', str(second)], FRONT) == []


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
        ('rear/capture:framerate:=7.0', FRONT, "does not match node '/front/capture'"),
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
    assert (keys_by_name(argv, '/capture'), keys_by_name(argv, '/front/inference')) == ({'meant', 'other'}, {'nested'})
    assert keys_for_any_node(argv, '/capture', bare_too=True) == always | {'nested', 'by_argument'}
    assert keys_for_any_node([], '/capture') == frozenset()
