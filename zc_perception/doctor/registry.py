"""All checks, by group, with what each looks at. Ids stay, since programs may rely on them. A new one goes to the end of its group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from zc_perception.doctor import (
    accelerator_checks,
    camera_checks,
    machine_checks,
    memory_checks,
    ros_checks,
)
from zc_perception.doctor.finding import Finding
from zc_perception.doctor.needs import Needs
from zc_perception.doctor.system import System

CheckFunction = Callable[[System, Needs], Iterable[Finding]]


@dataclass(frozen=True)
class Check:
    """One check: at least one finding, more where it has several subjects."""

    id: str
    function: CheckFunction

    @property
    def group(self) -> str:
        """What ``--only`` names."""
        return self.id.partition('.')[0]


CHECKS: tuple[Check, ...] = (
    Check(
        'parameters.file', ros_checks.parameter_file
    ),  # whether the nodes would take every key and value of the parameter file
    Check(
        'kernel.release', machine_checks.kernel_release
    ),  # which kernel, and whether it is new enough for the heaps
    Check(
        'kernel.options', machine_checks.kernel_options
    ),  # the kernel's options for dma-bufs, heaps, fences, CMA and IOMMU
    Check(
        'kernel.sync_file_ioctls', machine_checks.sync_file_ioctls
    ),  # whether fences can be taken out of buffers and put in (Linux 6.0)
    Check(
        'memory.heaps', memory_checks.heaps
    ),  # each dma-heap and udmabuf: there, and open to this user
    Check(
        'memory.udmabuf_limits', memory_checks.udmabuf_limits
    ),  # udmabuf's size limits against the buffers that are needed
    Check(
        'memory.cma_pool', memory_checks.cma_pool
    ),  # CmaTotal and CmaFree against the pool that the parameter file asks for
    Check(
        'buffers.cpu', memory_checks.cpu_trials
    ),  # a real buffer of each heap: allocated, mapped, synchronised, written and read back
    Check(
        'buffers.fences', memory_checks.fence_trials
    ),  # a real fence taken out of it and put back
    Check(
        'buffers.import', memory_checks.import_trials
    ),  # its import into each Metis card, and the release of it
    Check(
        'cameras.devices', camera_checks.camera_devices
    ),  # each /dev/video*: driver, card, formats, sizes, rates, who uses it
    Check(
        'cameras.configured', camera_checks.configured_cameras
    ),  # whether the parameter file's cameras offer what it asks for
    Check(
        'cameras.calibration', camera_checks.calibrations
    ),  # whether each camera's calibration file is there and fits
    Check('gstreamer.library', camera_checks.gstreamer_library),  # GStreamer, and its version
    Check('gstreamer.elements', camera_checks.gstreamer_elements),  # the elements that matter
    Check(
        'gstreamer.pipeline', camera_checks.gstreamer_pipelines
    ),  # whether the parameter file's pipelines can be made
    Check(
        'libcamera.bindings', camera_checks.libcamera_bindings
    ),  # libcamera's Python module and its cameras
    Check(
        'metis.cards', accelerator_checks.metis_cards
    ),  # Metis cards on PCI: driver bound, node there
    Check('metis.access', accelerator_checks.metis_access),  # whether this user may open each card
    Check('metis.driver', accelerator_checks.metis_driver),  # the driver's name and version
    Check(
        'metis.ioctls', accelerator_checks.metis_ioctls
    ),  # whether the driver has the import and submit ioctls
    Check(
        'metis.attach', accelerator_checks.metis_attach
    ),  # whether a shipped driver can attach a buffer of ours
    Check('metis.link', accelerator_checks.metis_link),  # speed and width of each card's PCIe link
    Check(
        'metis.iommu', accelerator_checks.metis_iommu
    ),  # each card's IOMMU group and what it does
    Check(
        'voyager.runtime', accelerator_checks.voyager_runtime
    ),  # which interface, where, which release; the driver and programs it needs
    Check(
        'voyager.toolchain', accelerator_checks.voyager_toolchain
    ),  # before release 1.8: the compiler that loads a model
    Check('jetson.release', machine_checks.jetson_release),  # which Jetson Linux
    Check(
        'jetson.nvbufsurface', machine_checks.nvbufsurface
    ),  # whether it loads, and its structs are those we know
    Check('jetson.vic', machine_checks.vic),  # the video image compositor's library
    Check(
        'model.manifest', accelerator_checks.model_manifest
    ),  # the parameter file's model: manifest and engine files
    Check(
        'model.load', accelerator_checks.model_load
    ),  # the model loaded on the accelerator that the inference node would choose
    Check('ros.distribution', ros_checks.ros_distribution),  # which ROS 2
    Check('ros.rclpy', ros_checks.ros_rclpy),  # whether rclpy works, and its version
    Check('ros.middleware', ros_checks.ros_middleware),  # which RMW, and whether it is installed
    Check(
        'ros.messages', ros_checks.ros_messages
    ),  # whether the packages of messages can be imported
    Check(
        'ros.large_messages', ros_checks.large_messages
    ),  # room for whole images in the middleware, for plain subscribers
    Check(
        'ros.discovery', ros_checks.ros_discovery
    ),  # ROS_DOMAIN_ID and how far discovery reaches
    Check(
        'link.runtime_folder', ros_checks.runtime_socket_folder
    ),  # the folder for shared-memory sockets
    Check('time.clock_source', machine_checks.clock_source),  # what the kernel counts time with
    Check(
        'time.synchronised', machine_checks.synchronised
    ),  # whether something disciplines the clock
    Check('limits.realtime', machine_checks.realtime),  # RLIMIT_RTPRIO
    Check('limits.locked_memory', machine_checks.locked_memory),  # RLIMIT_MEMLOCK
    Check(
        'limits.descriptors', machine_checks.descriptors
    ),  # RLIMIT_NOFILE against what the pools need
    Check(
        'limits.open_files', machine_checks.open_files
    ),  # of the machine, and the process that has most of them
)


def checks_of(groups: Sequence[str] = ()) -> tuple[Check, ...]:
    """The checks of some groups, or all."""
    return tuple(check for check in CHECKS if not groups or check.group in groups)
