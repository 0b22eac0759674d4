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

// Each thread computes one pixel of the network's input from an NV12 picture.
// The threads of a warp read neighbouring bytes, so that few transfers cross the bus.

__device__ float sample(const unsigned char *plane, int stride, int step, int width, int height,
                        float x, float y)
{
    x = fminf(fmaxf(x, 0.0f), width - 1.0f);
    y = fminf(fmaxf(y, 0.0f), height - 1.0f);
    int left = (int)x, top = (int)y;
    int right = min(left + 1, width - 1), bottom = min(top + 1, height - 1);
    float u = x - left, v = y - top;
    const unsigned char *above = plane + (size_t)top * stride;
    const unsigned char *below = plane + (size_t)bottom * stride;
    float upper = above[left * step] * (1 - u) + above[right * step] * u;
    float lower = below[left * step] * (1 - u) + below[right * step] * u;
    return upper * (1 - v) + lower * v;
}

// tensor: float32, 1 x 3 x side x side, RGB from 0 to 1; the border is YOLO's grey, 114 of 255.
// colour: black level, luma gain, then red of Cr, green of Cb, green of Cr and blue of Cb.
extern "C" __global__ void nv12_to_tensor(
    const unsigned char *luma, const unsigned char *chroma, int luma_stride, int chroma_stride,
    int width, int height, float *tensor, int side, int left, int top, int fit_width,
    int fit_height, const float *colour)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= side || row >= side)
        return;
    float rgb[3] = {114.0f, 114.0f, 114.0f};
    int x = column - left, y = row - top;
    if (x >= 0 && x < fit_width && y >= 0 && y < fit_height) {
        float u = (x + 0.5f) / fit_width, v = (y + 0.5f) / fit_height;
        int w = width / 2, h = height / 2;
        float level = colour[1] * (sample(luma, luma_stride, 1, width, height,
                                          u * width - 0.5f, v * height - 0.5f) - colour[0]);
        float cb = sample(chroma, chroma_stride, 2, w, h, u * w - 0.5f, v * h - 0.5f) - 128;
        float cr = sample(chroma + 1, chroma_stride, 2, w, h, u * w - 0.5f, v * h - 0.5f) - 128;
        rgb[0] = level + colour[2] * cr;
        rgb[1] = level + colour[3] * cb + colour[4] * cr;
        rgb[2] = level + colour[5] * cb;
    }
    for (int channel = 0; channel < 3; channel++)
        tensor[((size_t)channel * side + row) * side + column] =
            fminf(fmaxf(rgb[channel], 0.0f), 255.0f) / 255.0f;
}
