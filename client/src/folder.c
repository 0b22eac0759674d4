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
#define _GNU_SOURCE
#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire.h"

/* Remove needless slashes, "." and ".." from an absolute path, because announcements are compared by the text of the socket's path. */
static void shorten(char *path) {
    char *end = path; /* the end of what is kept */
    for (char *at = path; *at != '\0';) {
        at += strspn(at, "/");
        const size_t length = strcspn(at, "/");
        if (length == 2 && at[0] == '.' && at[1] == '.') {
            while (end > path && *--end != '/') {}
        } else if (length > 1 || (length == 1 && *at != '.')) {
            *end++ = '/';
            memmove(end, at, length);
            end += length;
        }
        at += length;
    }
    if (end == path) *end++ = '/';
    *end = '\0';
}
bool folder_path(char path[PATH_MAX]) {
    const char *named = getenv("ZC_RUNTIME_DIR"), *runtime = getenv("XDG_RUNTIME_DIR");
    int length;
    if (named != NULL && named[0] == '/') length = snprintf(path, PATH_MAX, "%s", named);
    else if (named != NULL && named[0] != '\0') { /* make it absolute, because processes that read the announcement run in other folders */
        char here[PATH_MAX];
        if (getcwd(here, sizeof here) == NULL) return false;
        length = snprintf(path, PATH_MAX, "%s/%s", here, named);
    } else {
        struct stat about;
        length = runtime == NULL || runtime[0] != '/' ? 0 : snprintf(path, PATH_MAX, "%s/zc_perception", runtime);
        if (length <= 0 || length >= PATH_MAX || ((stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) && eaccess(runtime, W_OK | X_OK) != 0))
            length = snprintf(path, PATH_MAX, "/tmp/zc_perception-%ju", (uintmax_t)geteuid());
    }
    if (length <= 0 || length >= PATH_MAX) return false;
    shorten(path);
    return true;
}

int folder_domain(int wanted) {
    const char *named = getenv("ROS_DOMAIN_ID");
    return wanted > 0 ? wanted : wanted < 0 || named == NULL ? 0 : atoi(named);
}

/* Compute the first 16 bytes of SHA-256 (FIPS 180-4) of a text of at most 55 bytes (one block), such as a boot id. */
static void sha256_of_one_block(const uint8_t *text, size_t length, uint8_t digest[16]) {
    static const uint32_t K[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
        0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
        0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
        0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
        0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
        0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}, w[64], v[8];
    uint8_t block[64] = {0};
    memcpy(block, text, length);
    block[length] = 0x80;
    block[62] = (uint8_t)(length >> 5), block[63] = (uint8_t)(length << 3);
#define ROTATED(x, n) ((x) >> (n) | (x) << (32 - (n)))
    for (int i = 0; i < 64; i++) {
        if (i < 16) {
            w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
            continue;
        }
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (ROTATED(a, 7) ^ ROTATED(a, 18) ^ a >> 3) + w[i - 7] + (ROTATED(b, 17) ^ ROTATED(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t e = v[4], a = v[0];
        const uint32_t one = v[7] + (ROTATED(e, 6) ^ ROTATED(e, 11) ^ ROTATED(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + K[i] + w[i];
        const uint32_t two = (ROTATED(a, 2) ^ ROTATED(a, 13) ^ ROTATED(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
#undef ROTATED
    for (int i = 0; i < 16; i++) digest[i] = (uint8_t)((h[i / 4] + v[i / 4]) >> (24 - 8 * (i % 4)));
}
bool folder_host_id(char id[33]) {
    char boot[56];
    uint8_t digest[16];
    const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t length = file < 0 ? -1 : read(file, boot, 55);
    if (file >= 0) close(file);
    if (length <= 0) return false;
    boot[length] = '\0';
    boot[strcspn(boot, "\n")] = '\0';
    sha256_of_one_block((const uint8_t *)boot, strlen(boot), digest);
    for (int i = 0; i < 16; i++) sprintf(id + 2 * i, "%02x", digest[i]);
    return true;
}

/* A JSON parser for announcements: an object of texts and numbers; other values are skipped. */
struct json { const char *at; };
static void blanks(struct json *json) { json->at += strspn(json->at, " \t\r\n"); }
static bool takes(struct json *json, char c) {
    blanks(json);
    if (*json->at != c) return false;
    json->at++;
    return true;
}
static bool hex4(const char *at, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < 4; i++) {
        const char c = at[i];
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return false;
        *code = *code << 4 | (uint32_t)digit;
    }
    return true;
}
/* Write the character of an escape, after its backslash, as UTF-8; return its number of bytes; 0: it is no escape. */
static size_t unescape(struct json *json, char out[4]) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char c = *json->at++;
    const char *plain = c == '\0' ? NULL : strchr(from, c);
    uint32_t code, low;
    if (plain != NULL) return out[0] = to[plain - from], 1;
    if (c != 'u' || !hex4(json->at, &code)) return 0;
    json->at += 4;
    if (code >= 0xd800 && code < 0xdc00) {
        if (json->at[0] != '\\' || json->at[1] != 'u' || !hex4(json->at + 2, &low) || low < 0xdc00 || low > 0xdfff) return 0;
        json->at += 6;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code == 0 || (code >= 0xdc00 && code < 0xe000)) return 0;
    if (code < 0x80) return out[0] = (char)code, 1;
    const size_t bytes = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = bytes - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(code | (uint32_t[]){0, 0, 0xc0, 0xe0, 0xf0}[bytes]);
    return bytes;
}
/* Read a JSON string into out; if it doesn't fit into size bytes, cut it and set *whole to false. Return false: it is no string. */
static bool text_of(struct json *json, char *out, size_t size, bool *whole) {
    size_t used = 0;
    *whole = true;
    if (!takes(json, '"')) return false;
    while (*json->at != '"') {
        char bytes[4];
        size_t count = 1;
        if ((unsigned char)*json->at < 0x20) return false; /* a control character, or the end of the input */
        if (*json->at == '\\') {
            json->at++;
            count = unescape(json, bytes);
            if (count == 0) return false;
        } else bytes[0] = *json->at++;
        if (used + count < size) memcpy(out + used, bytes, count), used += count;
        else *whole = false;
    }
    json->at++;
    out[used] = '\0';
    return true;
}
static bool skip_value(struct json *json, int deeper) {
    char none[1];
    bool whole;
    blanks(json);
    if (deeper == 0) return false;
    if (*json->at == '"') return text_of(json, none, sizeof none, &whole);
    if (*json->at != '{' && *json->at != '[') {
        const size_t length = strcspn(json->at, ",]} \t\r\n");
        json->at += length;
        return length > 0;
    }
    const char end = *json->at++ == '{' ? '}' : ']';
    if (takes(json, end)) return true;
    do {
        if (end == '}' && !(text_of(json, none, sizeof none, &whole) && takes(json, ':'))) return false;
        if (!skip_value(json, deeper - 1)) return false;
    } while (takes(json, ','));
    return takes(json, end);
}
static bool number_of(struct json *json, uint64_t *value) {
    char *end;
    blanks(json);
    if (*json->at < '0' || *json->at > '9') return false;
    errno = 0;
    *value = strtoull(json->at, &end, 10);
    json->at = end;
    return errno == 0 && strchr(",} \t\r\n", *end) != NULL;
}
/* A member of an object that is read: a text of at most size bytes, a number, or (if neither is set) a list, which is only checked. */
struct member { const char *name; char *text; size_t size; uint64_t *number; bool optional, seen; };
static bool object_of(struct json *json, struct member *members, size_t count) {
    char key[64];
    bool whole;
    if (!takes(json, '{')) return false;
    if (!takes(json, '}')) {
        do {
            if (!text_of(json, key, sizeof key, &whole) || !takes(json, ':')) return false;
            struct member *member = NULL;
            for (size_t i = 0; whole && i < count; i++)
                if (strcmp(members[i].name, key) == 0) member = &members[i];
            if (member == NULL) {
                if (!skip_value(json, 32)) return false;
            } else {
                const bool good = member->text != NULL     ? text_of(json, member->text, member->size, &whole) && whole
                                  : member->number != NULL ? number_of(json, member->number)
                                                           : (blanks(json), *json->at == '[') && skip_value(json, 4);
                if (!good) return false;
                member->seen = true;
            }
        } while (takes(json, ','));
        if (!takes(json, '}')) return false;
    }
    blanks(json);
    for (size_t i = 0; i < count; i++)
        if (!members[i].optional && !members[i].seen) return false;
    return *json->at == '\0';
}
bool folder_parse(const char *text, struct announcement *found) {
    uint64_t version = 0, width = 0, height = 0;
    char host[64], heap[256], own[33];
    memset(found, 0, sizeof *found);
    struct member members[] = {
        {.name = "version", .number = &version}, {.name = "publisher_id", .text = found->publisher_id, .size = sizeof found->publisher_id},
        {.name = "host_id", .text = host, .size = sizeof host}, {.name = "socket", .text = found->socket, .size = sizeof found->socket},
        {.name = "width", .number = &width}, {.name = "height", .number = &height}, {.name = "formats"},
        {.name = "heap", .text = heap, .size = sizeof heap}, {.name = "generation", .number = &found->generation, .optional = true}};
    if (!object_of(&(struct json){text}, members, sizeof members / sizeof *members)) return false;
    return version == WIRE_VERSION && width >= 1 && height >= 1 && wire_is_identifier(found->publisher_id) &&
           strchr(found->publisher_id, '/') == NULL && found->publisher_id[0] != '.' && folder_host_id(own) && strcmp(host, own) == 0 &&
           (found->socket[0] == '/' || found->socket[0] == '\0');
}
bool folder_read(const char *folder, const char *file, const char *topic, int domain, struct announcement *found) {
    char path[PATH_MAX], named[1024], text[FOLDER_MAX_FILE + 1], inner[FOLDER_MAX_FILE + 1], beside[PATH_MAX];
    uint64_t number = 0;
    struct member members[] = {{.name = "topic", .text = named, .size = sizeof named}, {.name = "domain", .number = &number},
                               {.name = "announcement", .text = inner, .size = sizeof inner}};
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) return false;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return false;
    struct stat about;
    const bool regular = fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size <= FOLDER_MAX_FILE;
    const ssize_t length = regular ? read(fd, text, FOLDER_MAX_FILE) : -1;
    close(fd);
    if (length <= 0 || memchr(text, 0, (size_t)length) != NULL) return false;
    text[length] = '\0';
    if (!object_of(&(struct json){text}, members, 3) || strcmp(named, topic) != 0 || number != (uint64_t)domain || !folder_parse(inner, found))
        return false;
    const size_t base = strlen(file) - strlen(".announcement");
    snprintf(beside, sizeof beside, "%s/%.*s.sock", folder, (int)base, file);
    return strcmp(beside, found->socket) == 0;
}
bool folder_quote(char *out, size_t size, const char *text) {
    size_t used = strlen(out);
    if (used + 2 >= size) return false;
    out[used++] = '"';
    for (; *text != '\0'; text++) {
        if (used + 8 >= size) return false;
        if (*text == '"' || *text == '\\') out[used++] = '\\', out[used++] = *text;
        else if ((unsigned char)*text < 0x20) used += (size_t)sprintf(out + used, "\\u%04x", *text);
        else out[used++] = *text;
    }
    out[used++] = '"';
    out[used] = '\0';
    return true;
}
