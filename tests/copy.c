/* Compares src/copy.c with a copy byte by byte: all lengths up to where it hands on, at all alignments, and for memmove
   at all distances. What stands around the target must stay as it is. */

#include <stdio.h>
#include <string.h>

#include "../src/copy.c"

enum { LONGEST = 640, AROUND = 160, ROOM = AROUND + LONGEST + AROUND };

static uint8_t source[ROOM], target[ROOM], wanted[ROOM];

void *__real_memcpy(void *restrict to, const void *restrict from, size_t length)
{
    return memcpy(to, from, length);
}

void *__real_memmove(void *to, const void *from, size_t length)
{
    return memmove(to, from, length);
}

static void fill(uint8_t *bytes, unsigned seed)
{
    for (size_t at = 0; at < ROOM; at++)
        bytes[at] = (uint8_t)((seed = seed * 1103515245 + 12345) >> 16);
}

/* What is copied from, what is copied to, and what that has to be then. With seed 2 the source is the target as it was. */
static void prepare(unsigned seed, size_t to, size_t from, size_t length)
{
    fill(source, seed);
    fill(target, 2);
    fill(wanted, 2);
    for (size_t at = 0; at < length; at++)
        wanted[to + at] = source[from + at];
}

static int differs(const char *what, const void *returned, size_t to, size_t from, size_t length)
{
    if (returned == target + to && memcmp(target, wanted, ROOM) == 0)
        return 0;
    printf("%s of %zu bytes from offset %zu to offset %zu\n", what, length, from, to);
    return 1;
}

int main(void)
{
    unsigned faults = 0;
    for (size_t length = 0; length <= LONGEST; length++) {
        for (size_t shift = 0; shift < 16 * 16; shift++) {
            size_t to = AROUND + shift % 16, from = AROUND + shift / 16;
            prepare(1, to, from, length);
            faults += differs("memcpy", __wrap_memcpy(target + to, source + from, length), to, from, length);
        }
        for (size_t from = 0; from < 2 * AROUND; from++) {
            prepare(2, AROUND, from, length);
            faults += differs("memmove", __wrap_memmove(target + AROUND, target + from, length), AROUND, from, length);
        }
        if (faults > 20)
            break;
    }
    return faults != 0;
}
