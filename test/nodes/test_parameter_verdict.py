"""Would these nodes take this file: which nodes a file is for, and everything that speaks against it, with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from zc_perception.nodes.params.verdict import Verdict, expected_nodes, judge
from zc_perception.nodes.params.yaml_file import ParameterYaml, read_parameter_yaml

FILE = """\
/**/capture:
  ros__parameters:
    slots: 0
    widht: 64
/front/inference:
  ros__parameters: {max_rate: fast, classes: [nope]}
/**:
  ros__parameters:
    qos_overrides./front/image_raw.publisher.depth: -1
    nobodys: 1
"""


def read(folder: Path, text: str) -> ParameterYaml:
    path = folder / 'vehicle.yaml'
    path.write_text(text)
    return read_parameter_yaml(str(path))


def verdict(folder: Path, text: str, *namespaces: str) -> Verdict:
    file = read(folder, text)
    return judge(file, expected_nodes(file.sections, namespaces or None))


def test_every_mistake_is_found_with_its_node_section_and_line(tmp_path: Path) -> None:
    found = verdict(tmp_path, FILE)
    places = [(one.node, one.section, one.line, one.text.split(' is ')[0]) for one in found.problems]
    assert places == [
        ('capture', '/**/capture', 4, "parameter 'widht'"),
        ('capture', '/**/capture', 3, "parameter 'slots'"),
        ('capture', '', 0, "parameter 'qos_overrides./front/image_raw.publisher.depth'"),
        ('inference', '/front/inference', 6, "parameter 'max_rate'"),
    ]
    assert found.warnings == ["section '/**': no node here has a parameter 'nobodys' (line 10)"] and found.misses == []


def test_the_same_mistake_of_two_cameras_is_said_once(tmp_path: Path) -> None:
    found = verdict(tmp_path, '/**/capture: {ros__parameters: {slots: 0}}\n', '/front', '/rear')
    assert [str(one) for one in found.problems] == ["parameter 'slots' is 0; it must be an integer from 3 to 64 (line 1)"]


def test_what_stands_on_top_of_the_file_is_judged_with_it_and_has_no_line(tmp_path: Path) -> None:
    file = read(tmp_path, '/**/capture: {ros__parameters: {slots: 0}}\n')
    assert judge(file, {'/capture': 'capture'}, {'capture': {'slots': 8}}).problems == []
    (problem,) = judge(file, {'/capture': 'capture'}, {'capture': {'slots': 1}}).problems
    assert (problem.text.split(';')[0], problem.section, problem.line) == ("parameter 'slots' is 1", '', 0)


@pytest.mark.parametrize(
    ('text', 'namespaces', 'nodes'),
    [
        ('', [], ['/capture', '/inference', '/overlay']),
        ('/**/capture', [], ['/capture', '/inference', '/overlay']),
        ('/front/capture', [], ['/front/capture', '/front/inference', '/front/overlay']),
        ('/**/truck/front/overlay', [], ['/truck/front/capture', '/truck/front/inference', '/truck/front/overlay']),
        ('/front/capture', ['/rear'], ['/rear/capture', '/rear/inference', '/rear/overlay']),
        ('/**/recorder', [], ['/capture', '/inference', '/overlay', '/recorder']),
        ('/recodrer', [], ['/capture', '/inference', '/overlay', '/recorder']),
        ('/planner', [], ['/capture', '/inference', '/overlay']),
    ],
)
def test_the_nodes_that_a_file_is_for(text: str, namespaces: list[str], nodes: list[str], tmp_path: Path) -> None:
    sections = read(tmp_path, f'{text}: {{ros__parameters: {{use_sim_time: false}}}}\n' if text else '').sections
    found = expected_nodes(sections, namespaces or None)
    assert sorted(found) == nodes and all(node.endswith(f'/{kind}') for node, kind in found.items())


def test_a_section_that_misses_its_node_and_one_of_a_name_that_is_misspelt(tmp_path: Path) -> None:
    text = '/*/capture: {ros__parameters: {slots: 4}}\n\n/**/infrence: {ros__parameters: {in_flight: 2}}\n'
    found = verdict(tmp_path, text)
    assert [(one.section, one.line) for one in found.misses] == [('/*/capture', 1)]
    assert [(one.section, one.line) for one in found.problems] == [('/**/infrence', 3)]
    assert "did you mean 'inference'?" in found.problems[0].text


def test_values_that_no_node_gets_are_a_warning_where_they_are_wrong(tmp_path: Path) -> None:
    text = '/**/capture: {ros__parameters: {slots: 0, width: 64}}\n/capture: {ros__parameters: {slots: 8}}\n'
    found = verdict(tmp_path, text + '/rear/capture: {ros__parameters: {widht: 0}}\n', '')
    assert not found.problems and not found.misses
    first, second = [sentence for sentence in found.warnings if 'no node gets it now' in sentence]
    assert "section '/**/capture': parameter 'slots' is 0; it must be an integer from 3 to 64 (line 1)" in first
    assert "section '/rear/capture': parameter 'widht' is unknown; did you mean 'width'? (line 3)" in second
