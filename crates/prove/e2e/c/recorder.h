/* A driver that does nothing but remember calls. The functions are generated, with the headers'
 * own prototypes; each is made of these words:
 *
 *     CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
 *         ENTER(cuMemAlloc_v2)
 *         ARGUMENT(dptr)
 *         ARGUMENT(bytesize)
 *         ANSWER(cuMemAlloc_v2(dptr, bytesize))
 *     }
 *
 * The call in ANSWER is not made: it stands for its type.
 *
 * A library between caller and recorder may ask for itself, about a card for example. Such calls
 * are told from the caller's by their names. They succeed and write nothing, but for the name of
 * the one card that there is, whatever its handle: it is the one in CUDA_VISIBLE_DEVICES.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "record.h"

static struct record record;

struct record *sublet_record(void) { return &record; }

static bool is_kept(const struct came *call) { return call >= record.kept && call < record.kept + MOST_KEPT; }

static struct came *enter(const char *function, void *frame) {
    static struct came other;
    bool keep = !record.awaited || strcmp(function, record.awaited) == 0;
    struct came *call = &other;
    if (keep && record.n_kept < MOST_KEPT) call = &record.kept[record.n_kept];
    record.n_kept += keep;
    call->function = function;
    call->n_arguments = 0;
    call->misalignment = (uintptr_t)frame % 16;
    return call;
}

static void *pointer(const struct came *call, unsigned place) {
    void *pointer;
    memcpy(&pointer, call->arguments[place].bytes, sizeof pointer);
    return pointer;
}

/* What the library is told when it asks for itself. */
static void tell(const struct came *call) {
    static const char *const NAMES[] = {"cuDeviceGetUuid", "cuDeviceGetUuid_v2", "nvmlDeviceGetUUID"};
    const char *card = getenv("CUDA_VISIBLE_DEVICES");
    int which = 0;
    while (which < 3 && strcmp(call->function, NAMES[which]) != 0) which++;
    if (which == 3 || !card || strncmp(card, "GPU-", 4) != 0) return;
    if (which == 2) { /* the text; its room is enough for any */
        strcpy(pointer(call, 1), card);
        return;
    }
    unsigned char *bytes = pointer(call, 0);
    card += strlen("GPU-");
    for (int i = 0; i < 16; i++, card += 2) {
        if (*card == '-') card++;
        sscanf(card, "%2hhx", &bytes[i]);
    }
}

static void answer(const struct came *call, void *to, size_t size) {
    if (is_kept(call)) {
        answer_of(&record, call->function, to, size);
        return;
    }
    memset(to, 0, size);
    tell(call);
}

#define ENTER(name) struct came *call = enter(#name, __builtin_frame_address(0));

#define ARGUMENT(argument)                                                          \
    _Static_assert(sizeof(argument) <= MOST_BYTES, #argument);                      \
    call->arguments[call->n_arguments].size = sizeof(argument);                     \
    memcpy(call->arguments[call->n_arguments].bytes, (const void *)&argument, sizeof(argument)); \
    call->n_arguments++;

#define ANSWER(expression)                      \
    __typeof__(expression) given;               \
    answer(call, (void *)&given, sizeof given); \
    return given;
