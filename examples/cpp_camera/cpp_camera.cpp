/*
 * Copyright 2026 The zc_perception authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Licensed under the Apache License, Version 2.0 (the "License");
 * you may not use this file except in compliance with the License.
 * You may obtain a copy of the License at
 *
 *     http://www.apache.org/licenses/LICENSE-2.0
 *
 * Unless required by applicable law or agreed to in writing, software
 * distributed under the License is distributed on an "AS IS" BASIS,
 * WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
 * See the License for the specific language governing permissions and
 * limitations under the License.
 */
// An rclcpp node that is a camera: zc_perception's nodes read its buffers without a copy.
//
//     ros2 run cpp_camera cpp_camera --ros-args -r image_raw:=/front/image_raw
//
// It draws into memfds. A node with a driver passes its dma-bufs to set_buffers() instead (kind ZC_DMABUF, heap "v4l2"), and calls
// publish() when it dequeues a full buffer. A timer handles the consumers' messages; no call here waits for a consumer.
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <rclcpp/rclcpp.hpp>
#include <std_msgs/msg/string.hpp>
#include <zc_client/zc_client.hpp>

using namespace std::chrono_literals;

class CppCamera : public rclcpp::Node {
public:
    CppCamera() : Node("cpp_camera"), topic_(get_node_topics_interface()->resolve_topic_name("image_raw")), camera_(options(topic_)) {
        const auto latched = rclcpp::QoS(rclcpp::KeepLast(1)).reliable().transient_local();
        announcement_ = create_publisher<std_msgs::msg::String>(topic_ + "/_zc", latched);
        announce();
        for (const auto until = std::chrono::steady_clock::now() + 300ms; std::chrono::steady_clock::now() < until;)
            camera_.step(20ms); // let consumers connect and send their needs
        allocate();
        announce();
        timer_ = create_wall_timer(33ms, [this] { next(); });
    }

private:
    static zc_publisher_options options(const std::string &topic) {
        zc_publisher_options options{};
        options.topic = topic.c_str();
        options.heap = "memfd";
        return options;
    }
    void announce() {
        std_msgs::msg::String told;
        told.data = camera_.announcement();
        announcement_->publish(told);
    }
    /// Allocate NV12 buffers with the smallest alignment that suits every connected consumer.
    void allocate() {
        zc_image image{};
        for (const std::uint32_t step : {1u, 64u, 256u, 4096u}) {
            zc::check(zc_image_linear(&image, ZC_FOURCC('N', 'V', '1', '2'), 640, 360, step < 256 ? step : 256, step));
            image.kind = ZC_MEMFD, image.matrix = ZC_BT709, image.range = ZC_LIMITED, image.transfer = ZC_TRANSFER_BT709;
            bool all = true;
            for (const zc_consumer &consumer : camera_.consumers()) all = all && zc_consumer_takes(&consumer, &image, "memfd", nullptr, 0);
            if (all) break;
        }
        std::vector<zc_image> images(8, image);
        for (zc_image &each : images) {
            void *memory = nullptr;
            each.fds[0] = zc::check(zc_memfd("cpp_camera", image.buffer_size[0], &memory));
            memory_.push_back(static_cast<std::uint8_t *>(memory));
        }
        camera_.set_buffers(images);
        image_ = image;
    }
    void next() {
        camera_.step();
        const auto slot = camera_.free_slot();
        number_++;
        if (!slot) return; // consumers hold all slots, so this frame is lost
        std::memset(memory_[*slot] + image_.planes[0].offset, static_cast<int>(number_ % 220 + 16), image_.planes[0].size);
        std::memset(memory_[*slot] + image_.planes[1].offset, 128, image_.planes[1].size);
        zc_frame_info about{};
        about.sequence = number_;
        about.stamp_ns = now().nanoseconds();
        about.frame_id = "camera_optical_frame";
        camera_.publish(*slot, about);
    }

    std::string topic_;
    zc::Publisher camera_;
    rclcpp::Publisher<std_msgs::msg::String>::SharedPtr announcement_;
    rclcpp::TimerBase::SharedPtr timer_;
    std::vector<std::uint8_t *> memory_;
    zc_image image_{};
    std::uint64_t number_ = 0;
};

int main(int argc, char **argv) {
    rclcpp::init(argc, argv);
    rclcpp::spin(std::make_shared<CppCamera>());
    rclcpp::shutdown();
}
