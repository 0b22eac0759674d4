"""The environment is real ROS 2: the interface packages built here are upstream's, byte for byte on the wire."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

rclpy = pytest.importorskip("rclpy", reason="needs the environment that `make env` sets up")
from ament_index_python import get_package_share_directory, get_resource  # noqa: E402
from composition_interfaces.srv import ListNodes, LoadNode, UnloadNode  # noqa: E402
from rcl_interfaces.msg import Parameter, ParameterValue  # noqa: E402
from rclpy.context import Context  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.node import Node  # noqa: E402
from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose  # noqa: E402

#: RIHS01 hashes of vision_msgs 4.1.1 and of Jazzy's composition_interfaces, from the definitions that they release.
UPSTREAM_HASHES = {
    "vision_msgs/msg/BoundingBox2D": "008eacbb0cf8f26e83795547bed013eec3675485ef386ec056d80eaaf1c1ce2f",
    "vision_msgs/msg/BoundingBox2DArray": "2464e82838009386d371b523211c21c91d74d313fcdd6788223c531d621cf691",
    "vision_msgs/msg/BoundingBox3D": "bbb73a65c163d7f9bb29009c7bde9f7faa576bd2d23299c4511d19230dab4698",
    "vision_msgs/msg/BoundingBox3DArray": "a81938db9576b10c2eecd7c5a5da3eac496efd00221b25ed051dfbc81fb56da6",
    "vision_msgs/msg/Classification": "f74db28d0eaef3afb78f48bf2161cd709a1383a0309d3454383b25be11345143",
    "vision_msgs/msg/Detection2D": "0d12b69df5c593b3455b7346fac8205437a7d4bcb09b9e0e0b2dde787ded38ea",
    "vision_msgs/msg/Detection2DArray": "214274120007f4a683866481336b70310268cfa107aebe9d594a6acf75bda968",
    "vision_msgs/msg/Detection3D": "ddd703be132ab0b69d33121f1bb034132bfbb3b0ac5f9fb1516005ba1c8a265b",
    "vision_msgs/msg/Detection3DArray": "793f5eab9595ac1c0da07873cc859db42eae51f0ee76056db8562515d830e018",
    "vision_msgs/msg/LabelInfo": "3d37df4015cdf660cc851c51897f2acd957e1ca6205ba0a99aebffb9406b0783",
    "vision_msgs/msg/ObjectHypothesis": "51da43cec11c01957a64d1e05a24acd18aae7745ec30b74348ad5f6d634f7f90",
    "vision_msgs/msg/ObjectHypothesisWithPose": "41c12344c0396c48b81df12467c192d99b2a0eb1463c5c37194e4223251c80bc",
    "vision_msgs/msg/Point2D": "eab0e83f44ab4de92ceaf76dd7d0e7638f2bdd1d16ffbe16c7a136c48e407247",
    "vision_msgs/msg/Pose2D": "b0b5d1d7b4c20dd4fcde3ed1d4b289a919290572007d67a97043814db25d3648",
    "vision_msgs/msg/VisionClass": "1e4a11f0fed50b5623cb8ff26ca0e37952a48a9c074d16f804b44e9164c2037a",
    "vision_msgs/msg/VisionInfo": "95d3116a17484ad91c9a2686e1d54890bbfc3ff6c6a2de137738c4950d45d284",
    "composition_interfaces/srv/ListNodes": "13f30d73a74c844ee4bacf78f3680f08777cad137f10fbd6a648544cc7b59d2a",
    "composition_interfaces/srv/LoadNode": "2e521ef6066fba6d7fc3a3b175d486709f01b4d738d9a59188858546fc8e5acd",
    "composition_interfaces/srv/UnloadNode": "dce562f83adc735ddcfe9dfb927b89293d4dd0fe2b8fc91e772fb83e970a43b0",
}
DEADLINE_S = 60.0


@pytest.fixture
def executor(free_domain: int) -> Iterator[SingleThreadedExecutor]:
    """Yield an executor in a ROS context of its own, invisible to other hosts."""
    context = Context()
    rclpy.init(context=context, domain_id=free_domain)
    executor = SingleThreadedExecutor(context=context)
    yield executor
    for node in executor.get_nodes():
        node.destroy_node()
    executor.shutdown()
    rclpy.shutdown(context=context)


def node_on(executor: SingleThreadedExecutor, name: str) -> Node:
    """Return a new node that ``executor`` spins."""
    node = Node(name, context=executor.context, start_parameter_services=False)
    executor.add_node(node)
    return node


def spin_until(executor: SingleThreadedExecutor, done: Callable[[], bool], what: str) -> None:
    """Spin until ``done``; fail with ``what`` was waited for."""
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline, f"no {what} within {DEADLINE_S} s"
        executor.spin_once(timeout_sec=0.1)


@pytest.mark.parametrize("name", UPSTREAM_HASHES)
def test_the_installed_type_hash_is_upstreams(name: str) -> None:
    package, kind, interface = name.split("/")
    description = json.loads(Path(get_package_share_directory(package), kind, f"{interface}.json").read_text())
    hashes = {entry["type_name"]: entry["hash_string"] for entry in description["type_hashes"]}
    assert hashes[name] == f"RIHS01_{UPSTREAM_HASHES[name]}"


@pytest.mark.parametrize("package", ["vision_msgs", "composition_interfaces"])
def test_a_built_package_is_in_the_ament_index(package: str) -> None:
    listed = get_resource("rosidl_interfaces", package)[0].split()
    share = Path(get_package_share_directory(package))
    assert share.is_relative_to(sys.prefix)
    assert (share / "package.xml").is_file()
    installed = [str(path.relative_to(share)) for path in share.glob("*/*") if path.suffix != ".json"]
    assert sorted(listed) == sorted(installed)
    expected = {name for name in UPSTREAM_HASHES if name.startswith(f"{package}/")}
    assert {f"{package}/{path.removesuffix('.idl')}" for path in listed if path.endswith(".idl")} == expected


@pytest.mark.parametrize("name", UPSTREAM_HASHES)
def test_every_type_can_be_instantiated(name: str) -> None:
    package, kind, interface = name.split("/")
    generated = getattr(importlib.import_module(f"{package}.{kind}"), interface)
    instances = [generated()] if kind == "msg" else [generated.Request(), generated.Response()]
    for instance in instances:
        assert instance == type(instance)()


def test_detections_arrive_as_they_were_sent(executor: SingleThreadedExecutor) -> None:
    sent = Detection2DArray()
    sent.header.frame_id = "camera"
    sent.header.stamp.nanosec = 999_999_999
    for number in range(3):
        detection = Detection2D(id=f"track {number}")
        detection.bbox.center.position.x = 10.5 + number
        detection.bbox.center.theta = -0.25
        detection.bbox.size_x = 640.0
        hypothesis = ObjectHypothesisWithPose()
        hypothesis.hypothesis.class_id = str(number)
        hypothesis.hypothesis.score = 0.75
        hypothesis.pose.covariance[35] = 1.5
        detection.results.append(hypothesis)
        sent.detections.append(detection)

    node = node_on(executor, "detections")
    received: list[Detection2DArray] = []
    node.create_subscription(Detection2DArray, "detections", received.append, 1)
    publisher = node.create_publisher(Detection2DArray, "detections", 1)
    spin_until(executor, lambda: publisher.get_subscription_count() == 1, "match")
    publisher.publish(sent)
    spin_until(executor, lambda: bool(received), "message")
    assert received == [sent]


def test_the_hash_on_the_wire_is_upstreams(executor: SingleThreadedExecutor) -> None:
    node = node_on(executor, "hashes")
    node.create_publisher(Detection2DArray, "detections", 1)
    spin_until(executor, lambda: bool(node.get_publishers_info_by_topic("detections")), "publisher in the graph")
    (info,) = node.get_publishers_info_by_topic("detections")
    assert info.topic_type_hash.version == 1
    assert bytes(info.topic_type_hash.value).hex() == UPSTREAM_HASHES["vision_msgs/msg/Detection2DArray"]


def test_a_container_can_be_asked_to_load_list_and_unload(executor: SingleThreadedExecutor) -> None:
    loaded: dict[int, LoadNode.Request] = {}

    def load(request: LoadNode.Request, response: LoadNode.Response) -> LoadNode.Response:
        loaded[len(loaded) + 1] = request
        response.success, response.unique_id = True, len(loaded)
        response.full_node_name = f"{request.node_namespace}/{request.node_name}"
        return response

    def list_nodes(_: ListNodes.Request, response: ListNodes.Response) -> ListNodes.Response:
        response.full_node_names = [request.node_name for request in loaded.values()]
        response.unique_ids = list(loaded)
        return response

    def unload(request: UnloadNode.Request, response: UnloadNode.Response) -> UnloadNode.Response:
        response.success = loaded.pop(request.unique_id, None) is not None
        response.error_message = "" if response.success else f"no node {request.unique_id}"
        return response

    container = node_on(executor, "container")
    container.create_service(LoadNode, "~/_container/load_node", load)
    container.create_service(ListNodes, "~/_container/list_nodes", list_nodes)
    container.create_service(UnloadNode, "~/_container/unload_node", unload)
    asker = node_on(executor, "asker")

    def ask(kind: type, name: str, request: object) -> object:
        client = asker.create_client(kind, f"container/_container/{name}")
        spin_until(executor, client.service_is_ready, f"service {name}")
        future = client.call_async(request)
        spin_until(executor, future.done, f"answer from {name}")
        return future.result()

    parameter = Parameter(name="rate_hz", value=ParameterValue(type=3, double_value=30.0))
    request = LoadNode.Request(package_name="zc_perception", plugin_name="capture")
    request.node_name, request.node_namespace = "camera", "/zc"
    request.parameters.append(parameter)
    request.remap_rules.append("image:=front/image")
    answer = ask(LoadNode, "load_node", request)
    assert (answer.success, answer.unique_id, answer.full_node_name) == (True, 1, "/zc/camera")
    assert loaded[1] == request

    answer = ask(ListNodes, "list_nodes", ListNodes.Request())
    assert (answer.full_node_names, list(answer.unique_ids)) == (["camera"], [1])
    assert ask(UnloadNode, "unload_node", UnloadNode.Request(unique_id=1)).success
    answer = ask(UnloadNode, "unload_node", UnloadNode.Request(unique_id=1))
    assert (answer.success, answer.error_message) == (False, "no node 1")
