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
// An rclcpp node that reads a zc_perception camera without a copy and publishes the mean brightness of each frame.
//
//     ros2 run cpp_viewer cpp_viewer --ros-args -r image_raw:=/front/image_raw
//
// The client finds the camera by its topic: the node passes announcements from <topic>/_zc to the client, which also looks for
// the announcement's file. A thread of its own waits for frames, because rclcpp can't wait for the client's descriptor.
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <thread>

#include <rclcpp/rclcpp.hpp>
#include <std_msgs/msg/float32.hpp>
#include <std_msgs/msg/string.hpp>
#include <zc_client/zc_client.hpp>

using namespace std::chrono_literals;

class CppViewer : public rclcpp::Node {
public:
    CppViewer() : Node("cpp_viewer"), topic_(get_node_topics_interface()->resolve_topic_name("image_raw")), camera_(options(topic_)) {
        publisher_ = create_publisher<std_msgs::msg::Float32>("brightness", rclcpp::SystemDefaultsQoS());
        const auto latched = rclcpp::QoS(rclcpp::KeepLast(100)).reliable().transient_local();
        announcements_ = create_subscription<std_msgs::msg::String>(topic_ + "/_zc", latched, [this](std_msgs::msg::String::ConstSharedPtr told) {
            try {
                camera_.announce(told->data);
            } catch (const std::system_error &error) {
                RCLCPP_DEBUG(get_logger(), "%s", error.what()); // a camera of another host
            }
        });
        reader_ = std::thread([this] { read(); });
    }
    ~CppViewer() override {
        stopped_ = true;
        reader_.join();
    }

private:
    static zc_client_options options(const std::string &topic) {
        static const zc_format formats[] = {{ZC_FOURCC('N', 'V', '1', '2'), ZC_LINEAR}};
        zc_client_options options{};
        options.topic = topic.c_str();
        options.name = "cpp_viewer";
        options.formats = formats;
        options.num_formats = 1;
        options.options = "cpu=read";
        return options;
    }
    void read() {
        std::string before;
        while (!stopped_ && rclcpp::ok()) {
            const auto frame = camera_.next(200ms);
            const std::string now = camera_.status().text;
            if (now != before) RCLCPP_INFO(get_logger(), "%s", now.empty() ? "connected" : now.c_str());
            before = now;
            if (!frame) continue;
            try {
                publish_brightness(*frame);
            } catch (const std::system_error &error) { // the frame is bad, for example because its camera has failed
                RCLCPP_WARN(get_logger(), "frame %lu: %s", static_cast<unsigned long>((*frame)->sequence), error.what());
            }
        } // the frame is released here, before the wait for the next one
    }
    void publish_brightness(const zc::Frame &frame) {
        const zc_image &image = frame.image();
        const auto pixels = frame.read();
        double sum = 0;
        for (std::uint32_t y = 0; y < image.height; y++) {
            const std::uint8_t *row = pixels.plane(0) + static_cast<std::size_t>(y) * frame.stride(0);
            sum = std::accumulate(row, row + image.width, sum);
        }
        std_msgs::msg::Float32 brightness;
        brightness.data = static_cast<float>(sum / image.width / image.height);
        publisher_->publish(brightness);
    }

    std::string topic_;
    zc::Client camera_;
    rclcpp::Publisher<std_msgs::msg::Float32>::SharedPtr publisher_;
    rclcpp::Subscription<std_msgs::msg::String>::SharedPtr announcements_;
    std::atomic<bool> stopped_{false};
    std::thread reader_;
};

int main(int argc, char **argv) {
    rclcpp::init(argc, argv);
    rclcpp::spin(std::make_shared<CppViewer>());
    rclcpp::shutdown();
}
