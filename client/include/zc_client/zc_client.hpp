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
// zc_client.h and zc_publisher.h for C++17: movable classes that release what they own, and exceptions.
//
//     zc::Client camera({.topic = "/image_raw"});            // C++20; in C++17 set the fields of zc_client_options
//     while (auto frame = camera.next(std::chrono::seconds(1))) {
//         auto pixels = frame->read();                       // waits for the fence, maps, synchronises the caches
//         use(pixels.plane(0), frame->stride(0));
//     }                                                      // the frame is released here
//
// Errors are std::system_error with the sentence of zc_error().
#ifndef ZC_CLIENT_ZC_CLIENT_HPP
#define ZC_CLIENT_ZC_CLIENT_HPP

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "zc_client/zc_client.h"
#include "zc_client/zc_publisher.h"

namespace zc {

inline int check(int result) {
    if (result < 0) throw std::system_error(-result, std::generic_category(), zc_error());
    return result;
}

/// A frame and its lease. It can be moved, not copied; its destructor releases the frame.
class Frame {
public:
    /// Reads the frame's pixels with the CPU. Destroy it before the frame.
    class Reading {
    public:
        Reading(zc_frame *frame, int timeout_ms) : frame_(frame) { check(zc_frame_begin_read(frame, timeout_ms, planes_.data())); }
        Reading(Reading &&other) noexcept : frame_(std::exchange(other.frame_, nullptr)), planes_(other.planes_) {}
        Reading &operator=(Reading &&) = delete;
        ~Reading() { if (frame_ != nullptr) zc_frame_end_read(frame_); }
        /// The address of a plane's first row.
        const std::uint8_t *plane(std::size_t index) const { return planes_.at(index); }

    private:
        zc_frame *frame_;
        std::array<const std::uint8_t *, ZC_MAX_PLANES> planes_{};
    };

    explicit Frame(zc_frame *frame) : frame_(frame) {}
    const zc_frame *operator->() const { return frame_.get(); }
    const zc_image &image() const { return *frame_->image; }
    std::uint32_t stride(std::size_t plane) const { return frame_->image->planes[plane].stride; }
    std::string frame_id() const { return frame_->frame_id; }
    /// Begin to read the pixels with the CPU.
    Reading read(std::chrono::milliseconds timeout = std::chrono::seconds(1)) const { return Reading(frame_.get(), static_cast<int>(timeout.count())); }
    /// Release the frame now. fence: a sync_file of a device that still reads it, which the caller still owns; -1: none.
    void release(int fence = -1) { check(zc_frame_release(frame_.release(), fence)); }

private:
    struct Release { void operator()(zc_frame *frame) const { zc_frame_release(frame, -1); } };
    std::unique_ptr<zc_frame, Release> frame_;
};

/// Reads one camera. Only one thread at a time may call next(). Any thread may destroy frames, also after the client's end.
class Client {
public:
    explicit Client(const zc_client_options &options) {
        zc_client *client = nullptr;
        check(zc_client_open(&options, &client));
        client_.reset(client);
    }
    int fd() const { return zc_client_fd(client_.get()); }
    /// Wait for the next frame; return nothing if none came in time or a signal came. A negative timeout has no limit.
    std::optional<Frame> next(std::chrono::milliseconds timeout) {
        zc_frame *frame = nullptr;
        const int came = zc_client_next(client_.get(), static_cast<int>(timeout.count()), &frame);
        if (came == -EINTR || check(came) == 0) return std::nullopt;
        return Frame(frame);
    }
    zc_status status() const {
        zc_status status{};
        zc_client_status(client_.get(), &status);
        return status;
    }
    void announce(const std::string &announcement) { check(zc_client_announce(client_.get(), announcement.c_str())); }
    void reject(const std::string &why) { zc_client_reject(client_.get(), why.c_str()); }

private:
    struct Close { void operator()(zc_client *client) const { zc_client_close(client); } };
    std::unique_ptr<zc_client, Close> client_;
};

/// Publishes the frames of one camera. zc_publisher.h documents when the caller owns a slot.
class Publisher {
public:
    explicit Publisher(const zc_publisher_options &options) {
        zc_publisher *publisher = nullptr;
        check(zc_publisher_open(&options, &publisher));
        publisher_.reset(publisher);
    }
    int fd() const { return zc_publisher_fd(publisher_.get()); }
    void step(std::chrono::milliseconds timeout = std::chrono::milliseconds(0)) {
        const int result = zc_publisher_step(publisher_.get(), static_cast<int>(timeout.count()));
        if (result != -EINTR) check(result);
    }
    std::vector<zc_consumer> consumers() const {
        std::vector<zc_consumer> found(zc_publisher_consumers(publisher_.get(), nullptr, 0));
        found.resize(std::min(found.size(), zc_publisher_consumers(publisher_.get(), found.data(), found.size())));
        return found;
    }
    void set_buffers(const std::vector<zc_image> &images) { check(zc_publisher_set_buffers(publisher_.get(), images.data(), images.size())); }
    /// Return the next slot that no consumer reads, which the caller owns from now on; nothing if there is none.
    std::optional<unsigned> free_slot() {
        const int slot = zc_publisher_free_slot(publisher_.get());
        return slot < 0 ? std::nullopt : std::optional<unsigned>(static_cast<unsigned>(slot));
    }
    /// Publish the frame in a slot; return the number of consumers that get it.
    int publish(unsigned slot, const zc_frame_info &about, int fence = -1) { return check(zc_publisher_publish(publisher_.get(), slot, &about, fence)); }
    std::string announcement() const { return zc_publisher_announcement(publisher_.get()); }

private:
    struct Close { void operator()(zc_publisher *publisher) const { zc_publisher_close(publisher); } };
    std::unique_ptr<zc_publisher, Close> publisher_;
};

}  // namespace zc
#endif
