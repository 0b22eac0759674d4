"""What launch files read from a parameter file is what rcl reads from it, and what they refuse is said in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
import yaml
from rclpy.node import Node

from zc_perception.errors import ConfigError
from zc_perception.link.rclpy_compat import parameter_overrides
from zc_perception.nodes.launching.parameter_file import ParameterFile, parameter_messages

SECTIONS = """
/**/front/capture: {ros__parameters: {a: 2, b: 2}}
/**/capture: {ros__parameters: {a: 1, c: 1, text: "5", number: 1e3, other: 1.5e-3}}
/**: {ros__parameters: {c: 0, d: {e: 5, f.g: 6}}}
/truck/front/capture: {ros__parameters: {a: 3}}
/*/capture: {ros__parameters: {q: 1, a: 11}}
/*/*/capture: {ros__parameters: {r: 1}}
/truck/**: {ros__parameters: {s: yes}}
truck: {front: {capture: {ros__parameters: {a: 4, h: [p, q], i: []}}}}
/front: {capture: {ros__parameters: {h: [1, 2]}}}
/planner: {ros__parameters: {a: 99}}
"""
TUPLES = '/**/capture: {ros__parameters: {h: !!python/tuple [p, q]}}'


@pytest.fixture
def context() -> Iterator[rclpy.Context]:
    context = rclpy.Context()
    yield context
    context.try_shutdown()


@pytest.mark.parametrize('text', [SECTIONS, TUPLES], ids=['sections', 'tuples, as launch_ros writes lists'])
def test_a_node_gets_what_rcl_would_give_it(tmp_path: Path, context: rclpy.Context, text: str, free_domain: int) -> None:
    path = tmp_path / 'file.yaml'
    path.write_text(text)
    rclpy.init(context=context, args=['--ros-args', '--params-file', str(path)])
    file = ParameterFile(str(path))
    for namespace in ('/truck/front', '/front', '/rear', '/truck', '/'):
        node = Node('capture', context=context, namespace=namespace, start_parameter_services=False, enable_rosout=False)
        expected: dict[str, Any] = {name: value.value for name, value in parameter_overrides(node).items()}
        node.destroy_node()
        read = file.values(f'{namespace.rstrip("/")}/capture')
        assert {name: None if value == [] else value for name, value in read.items()} == expected, namespace
        assert {name: type(value) for name, value in read.items() if value != []} == {
            name: type(value) for name, value in expected.items() if value is not None
        }


def test_an_empty_list_travels_as_an_empty_string() -> None:
    assert parameter_messages({'a': [], 'b': None, 'c': ['x'], 'd': 0, 'e': ''}) == {'a': [''], 'b': [''], 'c': ['x'], 'd': 0, 'e': ''}


REFUSED: dict[str, tuple[str, str]] = {
    'no mapping': ('- capture', "has no sections such as '/**/capture:'"),
    'broken': ('/**/capture: {ros__parameters: {a: [1', "can't be read"),
    'not text': ('a: \x00', "can't be read"),
    'no key between': ('/**/capture: {camera: v4l2}', "'**/capture/camera' needs 'ros__parameters:' between"),
    'an unknown parameter': (
        '/**/capture: {ros__parameters: {widht: 3}}',
        "capture: parameter 'widht' is unknown; did you mean 'width'?",
    ),
    'a wrong value': (
        '/**/inference: {ros__parameters: {accelerator: gpu}}',
        "inference: parameter 'accelerator' is 'gpu'; it must be one of auto, axl",
    ),
    'several at once': (
        '# every one with its line\n/**/capture:\n  ros__parameters: {widht: 3, heigth: 3}\n/**: {ros__parameters: {framerate: -1.0}}',
        "'width'? (line 3); capture: parameter 'heigth' is unknown; did you mean 'height'? (line 3); "
        "capture: parameter 'framerate' is -1.0; it must be a number from 0 to 1000 (Hz) (line 4)",
    ),
    'an unknown parameter, for all and by name': (
        '/**: {ros__parameters: {widht: 3}}\n/front/capture: {ros__parameters: {widht: 3}}',
        "capture: parameter 'widht' is unknown",
    ),
    'a wrong value for all nodes': ('/**: {ros__parameters: {width: wide}}', "capture: parameter 'width' is 'wide'"),
    'a section that misses its node': (
        '/capture: {ros__parameters: {width: 3}}',
        "'capture' does not match node '/front/capture'; write '/**/capture'",
    ),
    "another of our nodes' parameter": (
        '/**/capture: {ros__parameters: {score_threshold: 0.5}}',
        "capture: parameter 'score_threshold' is unknown; it belongs to node 'inference': set it there",
    ),
    'a stand-in that is none': (
        '/**/capture: {ros__parameters: {participants: [garbage]}}',
        "capture: parameter 'participants': 'garbage'",
    ),
    'a CPU that is not there': (
        "/**/capture: {ros__parameters: {cpu_affinity: ['0-99999']}}",
        "capture: parameter 'cpu_affinity' has '0-99999'",
    ),
    'nobody': (
        '/**/overlay: {ros__parameters: {shared_memory_users: [nobody9]}}',
        "overlay: parameter 'shared_memory_users': there is no user",
    ),
    'a recording that is not there': ('/**/capture: {ros__parameters: {camera: replay}}', "capture: parameter 'video' is empty"),
    'a model that is not there': ('/**/inference: {ros__parameters: {model: nope}}', "inference: model 'nope' is not known"),
    'a class that the model has not': ('/**/inference: {ros__parameters: {classes: [nope]}}', "inference: parameter 'classes' has 'nope'"),
    'a calibration by http': (
        "/**/capture: {ros__parameters: {camera_info_url: 'http://x/y'}}",
        "capture: parameter 'camera_info_url' is 'http://x/y'",
    ),
    'a type of every node': ('/**: {ros__parameters: {use_sim_time: 5}}', "overlay: parameter 'use_sim_time' is 5; it must be a boolean"),
    'a QoS that there is not': (
        '/**: {ros__parameters: {qos_overrides: {/front/image_raw: {publisher: {reliability: foo}}}}}',
        "capture: parameter 'qos_overrides./front/image_raw.publisher.reliability' is 'foo'; it must be reliable or best_effort",
    ),
    'a depth that is none': (
        '/**: {ros__parameters: {qos_overrides: {/front/detections: {subscription: {depth: -1}}}}}',
        "overlay: parameter 'qos_overrides./front/detections.subscription.depth' is -1; it must be an integer from 0",
    ),
    "another of our nodes' QoS": (
        '/front/inference: {ros__parameters: {qos_overrides: {/front/image_raw: {publisher: {depth: 2}}}}}',
        "'qos_overrides./front/image_raw.publisher.depth' is unknown; did you mean 'qos_overrides./front/image_raw.subscription.depth'?",
    ),
    'more latched than there is': (
        '/**: {ros__parameters: {slots: 5, qos_overrides: {/front/image_raw: {publisher: {depth: 2, durability: transient_local}}}}}',
        "capture: topic 'image_raw': transient_local with depth 2 would pin 2 of 5 slots",
    ),
    'a node that is not there': ('/**/captrue: {ros__parameters: {width: 3}}', "there is no node 'captrue' here; did you mean 'capture'?"),
}
NODES = {'/front/capture': 'capture', '/front/inference': 'inference', '/front/overlay': 'overlay'}


@pytest.mark.parametrize('case', REFUSED)
def test_what_is_wrong_is_said_in_one_line_that_names_the_file(tmp_path: Path, case: str) -> None:
    text, message = REFUSED[case]
    path = tmp_path / 'mine.yaml'
    path.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        ParameterFile(str(path)).check(NODES)
    assert message in str(refusal.value) and str(path) in str(refusal.value)
    assert '\n' not in str(refusal.value)


def test_what_the_launch_arguments_set_stands_on_top_of_the_file(tmp_path: Path) -> None:
    path, video = tmp_path / 'mine.yaml', tmp_path / 'drive.avi'
    path.write_text('/**/capture: {ros__parameters: {camera: replay}}')
    video.touch()
    file = ParameterFile(str(path))
    assert file.check(NODES, {'capture': {'video': str(video)}}) == []
    assert file.check(NODES, {'capture': {'camera': 'synthetic'}}) == []
    with pytest.raises(
        ConfigError, match=r"mine.yaml', with camera, video as the launch arguments say: capture: video '/nope' does not exist"
    ):
        file.check(NODES, {'capture': {'camera': 'replay', 'video': '/nope'}, 'recorder': {'path': ''}})


def test_what_is_others_business_passes(tmp_path: Path) -> None:
    path = tmp_path / 'file.yaml'
    values = {'use_sim_time': True, 'controls.brightness': 3, 'qos_overrides./image_raw.publisher.depth': 2}
    sections = {'/**/capture': values, '/planner': {'widht': 3}, '/**': {'planner_rate': 3}, '/front/*': {'planner_rate': 3}}
    path.write_text(yaml.safe_dump({name: {'ros__parameters': parameters} for name, parameters in sections.items()}))
    said = "section '/**', '/front/*': no node here has a parameter 'planner_rate'; did you mean 'replay_rate'? (line 3)"
    assert ParameterFile(str(path)).check(NODES) == [f"params_file '{path}': {said}"]


OF_ANY_NODE: dict[str, tuple[str, list[str]]] = {
    'mistyped': ('/**: {ros__parameters: {widht: 3}}', ["'widht'; did you mean 'width'?"]),
    'for a namespace': ('/front/*: {ros__parameters: {widht: 3}}', ["'widht'; did you mean 'width'?"]),
    'of others, and mistyped': ('/**: {ros__parameters: {wheelbase: 3, scal: 1}}', ["'scal'; did you mean 'scale'?", "'wheelbase'"]),
    'each once': ('/**: {ros__parameters: {widht: 3}}\n/**/*: {ros__parameters: {widht: 3}}', ["'widht'; did you mean 'width'?"]),
    'of different nodes of ours': ('/**: {ros__parameters: {slots: 8, score_threshold: 0.5, scale: 1.0, controls.gain: 1}}', []),
    'of a node of ours that is not here': ('/**: {ros__parameters: {max_frames: 8}}', []),
    'of every node': ('/**: {ros__parameters: {use_sim_time: true, qos_overrides: {/x: {publisher: {depth: 1}}}}}', []),
    'for nodes that are elsewhere': ('/rear/*: {ros__parameters: {widht: 3}}', []),
}


@pytest.mark.parametrize('case', OF_ANY_NODE)
def test_a_key_for_any_node_that_none_has_is_a_warning(tmp_path: Path, case: str) -> None:
    text, keys = OF_ANY_NODE[case]
    path = tmp_path / 'mine.yaml'
    path.write_text(text)
    said = ParameterFile(str(path)).check(NODES)
    assert [sentence.split('no node here has a parameter ')[1].rpartition(' (line ')[0] for sentence in said] == keys
    assert all(str(path) in sentence for sentence in said)


def test_a_node_without_a_section_of_its_own_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / 'mine.yaml'
    path.write_text('/**/capture: {ros__parameters: {width: 64}}\n/rear/capture: {ros__parameters: {width: 3}}\n')
    said, value = ParameterFile(str(path)).check(NODES)
    assert "no section names '/front/capture', and there are sections for nodes that are not here: 'rear/capture'" in said
    assert "section '/rear/capture': parameter 'width' is 3; it must be" in value and '(line 2); no node gets it now' in value


def test_each_node_gets_of_all_nodes_parameters_those_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / 'file.yaml'
    everybody = {'use_sim_time': True, 'width': 320, 'score_threshold': 0.5, 'planner_rate': 3, 'qos_overrides./x.publisher.depth': 1}
    path.write_text(yaml.safe_dump({'/**': {'ros__parameters': everybody}, '/**/overlay': {'ros__parameters': {'scale': 0.5}}}))
    file = ParameterFile(str(path))
    assert file.own_values('/capture', 'capture').keys() == everybody.keys() - {'score_threshold', 'planner_rate'}
    assert file.own_values('/inference', 'inference').keys() == everybody.keys() - {'width', 'planner_rate'}
    assert file.own_values('/overlay', 'overlay').keys() == everybody.keys() - {'score_threshold', 'width', 'planner_rate'} | {'scale'}
    assert file.values('/overlay').keys() == everybody.keys() | {'scale'}


def test_a_file_that_is_not_there_says_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"params_file '/no/such\.yaml' does not exist or is not a file; installed are a\.yaml$"):
        ParameterFile('/no/such.yaml', hint='installed are a.yaml')


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'is not a file$'):
        ParameterFile(str(tmp_path))
