/* memcpy and memmove for the static binary on x86-64. musl's begin with `rep movs`, which takes 20 ns to start, however
   little there is to move, and a request moves a hundred small things. build.rs links this with `--wrap`: all that call
   memcpy or memmove come here, and what is long goes on to musl's own.

   Each size has its branch, where the first and the last part, which may overlap, are all of it. A branch reads
   everything before it writes anything, so it does for memmove too. */

#include <stddef.h>
#include <stdint.h>

void *__real_memcpy(void *restrict to, const void *restrict from, size_t length);
void *__real_memmove(void *to, const void *from, size_t length);
void *__wrap_memcpy(void *restrict to, const void *restrict from, size_t length);
void *__wrap_memmove(void *to, const void *from, size_t length);

/* At any address, and whatever is really there. */
typedef uint16_t Bytes2 __attribute__((aligned(1), may_alias));
typedef uint32_t Bytes4 __attribute__((aligned(1), may_alias));
typedef uint64_t Bytes8 __attribute__((aligned(1), may_alias));
typedef uint8_t Bytes16 __attribute__((vector_size(16), aligned(1), may_alias));

#define FIRST_AND_LAST(type)                                                                                           \
    {                                                                                                                  \
        type first = *(const type *)from, last = *(const type *)(from + length - sizeof(type));                        \
        *(type *)to = first;                                                                                           \
        *(type *)(to + length - sizeof(type)) = last;                                                                  \
    }

static inline void up_to_32(uint8_t *to, const uint8_t *from, size_t length)
{
    if (length >= 16)
        FIRST_AND_LAST(Bytes16)
    else if (length >= 8)
        FIRST_AND_LAST(Bytes8)
    else if (length >= 4)
        FIRST_AND_LAST(Bytes4)
    else if (length >= 2)
        FIRST_AND_LAST(Bytes2)
    else if (length == 1)
        *to = *from;
}

static inline void up_to_128(uint8_t *to, const uint8_t *from, size_t length)
{
    const Bytes16 *start = (const Bytes16 *)from, *end = (const Bytes16 *)(from + length);
    Bytes16 *to_start = (Bytes16 *)to, *to_end = (Bytes16 *)(to + length);
    Bytes16 first = start[0], second = start[1], last = end[-1], before = end[-2];
    if (length > 64) {
        Bytes16 third = start[2], fourth = start[3], third_last = end[-3], fourth_last = end[-4];
        to_start[2] = third;
        to_start[3] = fourth;
        to_end[-3] = third_last;
        to_end[-4] = fourth_last;
    }
    to_start[0] = first;
    to_start[1] = second;
    to_end[-1] = last;
    to_end[-2] = before;
}

static inline void exactly_64(uint8_t *to, const uint8_t *from)
{
    const Bytes16 *source = (const Bytes16 *)from;
    Bytes16 *target = (Bytes16 *)to;
    Bytes16 first = source[0], second = source[1], third = source[2], fourth = source[3];
    target[0] = first;
    target[1] = second;
    target[2] = third;
    target[3] = fourth;
}

void *__wrap_memcpy(void *restrict to, const void *restrict from, size_t length)
{
    if (length <= 32) {
        up_to_32(to, from, length);
    } else if (length <= 128) {
        up_to_128(to, from, length);
    } else if (length <= 512) {
        /* Target and source do not overlap here. */
        uint8_t *target = to;
        const uint8_t *source = from;
        for (size_t at = 0; at + 64 < length; at += 64)
            exactly_64(target + at, source + at);
        exactly_64(target + length - 64, source + length - 64);
    } else {
        return __real_memcpy(to, from, length);
    }
    return to;
}

void *__wrap_memmove(void *to, const void *from, size_t length)
{
    if (length <= 32) {
        up_to_32(to, from, length);
    } else if (length <= 128) {
        up_to_128(to, from, length);
    } else {
        return __real_memmove(to, from, length);
    }
    return to;
}
