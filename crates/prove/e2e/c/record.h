/* What the recorder driver and its caller share: a record of calls, what the caller wants of the
 * recorder, and values that show a mix-up. The bytes of an argument follow from the function's
 * name, the number of the call and the argument's place, so none arrives right by accident.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MOST_ARGUMENTS = 24, MOST_BYTES = 128, RESULT = MOST_ARGUMENTS, MOST_KEPT = 4 };

struct argument {
    size_t size;
    unsigned char bytes[MOST_BYTES];
};

/* One call that came. */
struct came {
    const char *function;
    size_t misalignment; /* of its stack frame: 0 by the ABI */
    unsigned n_arguments;
    struct argument arguments[MOST_ARGUMENTS];
};

struct record {
    /* The caller writes: */
    const char *awaited; /* which function's calls to keep; without one, all are kept */
    unsigned number;     /* of the call, from which its result follows */
    bool grants;         /* the result is 0, which stands for success */
    /* The recorder writes, and the caller sets back: */
    unsigned n_kept;
    struct came kept[MOST_KEPT];
};

static inline void fill(void *to, size_t size, const char *function, unsigned call, unsigned place) {
    uint64_t state = ((uint64_t)call << 32) + place;
    for (; *function; function++) state = (state ^ (unsigned char)*function) * 0x100000001b3;
    unsigned char *bytes = to;
    for (size_t i = 0; i < size; i++) { /* splitmix64 */
        uint64_t mixed = state += 0x9e3779b97f4a7c15;
        mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
        mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
        bytes[i] = (unsigned char)(mixed >> 56);
    }
}

/* The result that a call of the caller's is given. */
static inline void answer_of(const struct record *record, const char *function, void *to, size_t size) {
    if (record->grants) memset(to, 0, size);
    else fill(to, size, function, record->number, RESULT);
}
