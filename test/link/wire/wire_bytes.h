/* Little-endian integers, UTF-8, JSON strings and CRC-32 of the wire consumer. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stddef.h>

static uint64_t get(const uint8_t *at, unsigned bytes) {
    uint64_t value = 0;
    while (bytes-- > 0) value = value << 8 | at[bytes];
    return value;
}
static uint32_t get32(const uint8_t *at) { return (uint32_t)get(at, 4); }
static void put(uint8_t *at, unsigned bytes, uint64_t value) {
    for (unsigned i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> 8 * i);
}

/* How many bytes the character has that *length* bytes begin with; 0 where it isn't UTF-8. */
static size_t character(const uint8_t *text, size_t length) {
    static const uint32_t lowest[] = {0, 0x80, 0x800, 0x10000};
    uint32_t code = text[0];
    const unsigned more = code < 0x80 ? 0 : code >> 5 == 6 ? 1 : code >> 4 == 14 ? 2 : code >> 3 == 30 ? 3 : 4;
    if (more == 4 || more >= length) return 0;
    if (more > 0) code &= 0x3fu >> more;
    for (unsigned k = 1; k <= more; k++) {
        if (text[k] >> 6 != 2) return 0;
        code = code << 6 | (text[k] & 0x3fu);
    }
    return code < lowest[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : more + 1;
}
static bool is_utf8(const uint8_t *text, size_t length) {
    size_t i = 0, bytes;
    while (i < length && (bytes = character(text + i, length - i)) > 0) i += bytes;
    return i == length;
}
/* A JSON string; what isn't UTF-8 becomes replacement characters. */
static void print_text(const uint8_t *text, size_t length) {
    putchar('"');
    for (size_t i = 0, bytes; i < length; i += bytes > 0 ? bytes : 1) {
        bytes = character(text + i, length - i);
        if (bytes == 0) fputs("\\ufffd", stdout);
        else if (text[i] < 0x20 || text[i] == '"' || text[i] == '\\') printf("\\u%04x", text[i]);
        else fwrite(text + i, 1, bytes, stdout);
    }
    putchar('"');
}
/* What names a publisher, 1 to 32 printable ASCII characters, and zero bytes up to 32. */
static bool is_identifier(const uint8_t field[32]) {
    size_t length = 0;
    while (length < 32 && field[length] >= 0x20 && field[length] <= 0x7e) length++;
    for (size_t i = length; i < 32; i++)
        if (field[i] != 0) return false;
    return length > 0;
}

/* CRC-32 as zlib's, without its two inversions. */
static uint32_t crc32_of(uint32_t value, const uint8_t *bytes, uint64_t length) {
    static uint32_t table[256];
    for (uint32_t i = 0; table[255] == 0 && i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
    }
    for (uint64_t i = 0; i < length; i++) value = table[(value ^ bytes[i]) & 0xff] ^ value >> 8;
    return value;
}
