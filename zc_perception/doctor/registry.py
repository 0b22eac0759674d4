"""All checks, by group. Ids are stable: programs may rely on them, and a new one is added at the end of its group.

==========================  ============================================================================================================
id                          what is looked at
==========================  ============================================================================================================
parameters.file             whether the nodes would take every key and value of the parameter file
kernel.release              which kernel, and whether it is new enough for the heaps
kernel.options              the kernel's options for dma-bufs, heaps, fences, CMA and IOMMU
kernel.sync_file_ioctls     whether fences can be taken out of buffers and put into them (Linux 6.0)
memory.heaps                each dma-heap and udmabuf: there, and open to this user
memory.udmabuf_limits       udmabuf's size limits against the buffers that are needed
memory.cma_pool             CmaTotal and CmaFree against the pool that the parameter file asks for
buffers.cpu                 a real buffer of each heap: allocated, mapped, synchronised, written and read back
buffers.fences              a real fence taken out of it and put back
buffers.import              its import into each Metis card, and the release of it
cameras.devices             each /dev/video*: driver, card, formats, sizes, rates, who uses it
cameras.configured          whether the camera that the parameter file names offers what it asks for
cameras.calibration         whether each camera's calibration file is there and fits
gstreamer.library           GStreamer, and its version
gstreamer.elements          the elements that matter, with the real names of their properties
gstreamer.pipeline          whether the parameter file's pipelines can be made
libcamera.bindings          libcamera's Python module and its cameras
metis.cards                 Metis cards on PCI: driver bound, node there
metis.access                whether this user may open each card
metis.driver                the driver's name and version
metis.ioctls                whether the driver has the import and submit ioctls
metis.attach                whether a shipped driver can attach a buffer of ours
metis.link                  speed and width of each card's PCIe link
metis.iommu                 each card's IOMMU group and what it does
voyager.runtime             which interface, where, which release; driver and programs that it needs
voyager.toolchain           before release 1.8: the compiler that the runtime calls when it loads a model
jetson.release              which Jetson Linux
jetson.nvbufsurface         libnvbufsurface: which generation, and whether its structs are those we know
jetson.vic                  the video image compositor's library
model.manifest              the parameter file's model: manifest and engine files
model.load                  the model loaded on the accelerator that the inference node would choose
ros.distribution            which ROS 2
ros.rclpy                   whether rclpy works, and its version
ros.middleware              which RMW, and whether it is installed
ros.messages                whether the packages of messages can be imported
ros.large_messages          room for whole images in the middleware, for plain subscribers
ros.discovery               ROS_DOMAIN_ID and how far discovery reaches
link.runtime_folder         the folder for shared-memory sockets
time.clock_source           what the kernel counts time with
time.synchronised           whether something disciplines the clock
limits.realtime             RLIMIT_RTPRIO
limits.locked_memory        RLIMIT_MEMLOCK
limits.descriptors          RLIMIT_NOFILE against what the pools need
limits.open_files           the machine's open files, and the process that has most of them: where to look for a leak
==========================  ============================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from zc_perception.doctor import accelerator_checks, camera_checks, machine_checks, memory_checks, ros_checks
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
    Check('parameters.file', ros_checks.parameter_file),
    Check('kernel.release', machine_checks.kernel_release),
    Check('kernel.options', machine_checks.kernel_options),
    Check('kernel.sync_file_ioctls', machine_checks.sync_file_ioctls),
    Check('memory.heaps', memory_checks.heaps),
    Check('memory.udmabuf_limits', memory_checks.udmabuf_limits),
    Check('memory.cma_pool', memory_checks.cma_pool),
    Check('buffers.cpu', memory_checks.cpu_trials),
    Check('buffers.fences', memory_checks.fence_trials),
    Check('buffers.import', memory_checks.import_trials),
    Check('cameras.devices', camera_checks.camera_devices),
    Check('cameras.configured', camera_checks.configured_cameras),
    Check('cameras.calibration', camera_checks.calibrations),
    Check('gstreamer.library', camera_checks.gstreamer_library),
    Check('gstreamer.elements', camera_checks.gstreamer_elements),
    Check('gstreamer.pipeline', camera_checks.gstreamer_pipelines),
    Check('libcamera.bindings', camera_checks.libcamera_bindings),
    Check('metis.cards', accelerator_checks.metis_cards),
    Check('metis.access', accelerator_checks.metis_access),
    Check('metis.driver', accelerator_checks.metis_driver),
    Check('metis.ioctls', accelerator_checks.metis_ioctls),
    Check('metis.attach', accelerator_checks.metis_attach),
    Check('metis.link', accelerator_checks.metis_link),
    Check('metis.iommu', accelerator_checks.metis_iommu),
    Check('voyager.runtime', accelerator_checks.voyager_runtime),
    Check('voyager.toolchain', accelerator_checks.voyager_toolchain),
    Check('jetson.release', machine_checks.jetson_release),
    Check('jetson.nvbufsurface', machine_checks.nvbufsurface),
    Check('jetson.vic', machine_checks.vic),
    Check('model.manifest', accelerator_checks.model_manifest),
    Check('model.load', accelerator_checks.model_load),
    Check('ros.distribution', ros_checks.ros_distribution),
    Check('ros.rclpy', ros_checks.ros_rclpy),
    Check('ros.middleware', ros_checks.ros_middleware),
    Check('ros.messages', ros_checks.ros_messages),
    Check('ros.large_messages', ros_checks.large_messages),
    Check('ros.discovery', ros_checks.ros_discovery),
    Check('link.runtime_folder', ros_checks.runtime_socket_folder),
    Check('time.clock_source', machine_checks.clock_source),
    Check('time.synchronised', machine_checks.synchronised),
    Check('limits.realtime', machine_checks.realtime),
    Check('limits.locked_memory', machine_checks.locked_memory),
    Check('limits.descriptors', machine_checks.descriptors),
    Check('limits.open_files', machine_checks.open_files),
)


def checks_of(groups: Sequence[str] = ()) -> tuple[Check, ...]:
    """The checks of some groups, or all."""
    return tuple(check for check in CHECKS if not groups or check.group in groups)
