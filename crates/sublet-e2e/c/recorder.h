/* A driver that does nothing but remember its last call. The functions are generated, with the
 * headers' own prototypes; each is made of these words:
 *
 *     CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
 *         ENTER(cuMemAlloc_v2)
 *         ARGUMENT(dptr)
 *         ARGUMENT(bytesize)
 *         ANSWER(cuMemAlloc_v2(dptr, bytesize))
 *     }
 *
 * The call in ANSWER is not made: it stands for its type.
 */
#include "record.h"

static struct record last;

const struct record *sublet_record(void) { return &last; }

#define ENTER(name)        \
    last.function = #name; \
    last.n_calls++;        \
    last.n_arguments = 0;  \
    last.misalignment = (uintptr_t)__builtin_frame_address(0) % 16;

#define ARGUMENT(argument)                                                           \
    _Static_assert(sizeof(argument) <= MOST_BYTES, #argument);                       \
    last.arguments[last.n_arguments].size = sizeof(argument);                        \
    memcpy(last.arguments[last.n_arguments].bytes, (const void *)&argument, sizeof(argument)); \
    last.n_arguments++;

#define ANSWER(call)                                                      \
    __typeof__(call) answer;                                              \
    fill(&answer, sizeof answer, last.function, last.n_calls, RESULT);    \
    return answer;
