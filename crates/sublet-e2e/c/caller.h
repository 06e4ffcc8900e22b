/* Calls every function of a library, twice because the first call of a name finds its way and the
 * next one knows it, and compares what the recorder behind the library saw. Usage:
 *
 *     caller LIBRARY RECORDER blind [NAME…]      all functions but those named
 *     caller LIBRARY RECORDER readable [NAME…]   the same; the library may follow pointers
 *
 * Pointers lead into a region of their own: zeros where they may be followed, else nothing, so
 * that a library which looks behind one dies.
 *
 * The calls are generated; each is made of these words:
 *
 *     CALL(cuMemAlloc_v2, CUdeviceptr *dptr; size_t bytesize;)
 *         GIVE(dptr)
 *         GIVE(bytesize)
 *         MAKE(cuMemAlloc_v2, (given.dptr, given.bytesize))
 *         CAME(dptr)
 *         CAME(bytesize)
 *     DONE
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "record.h"

enum { CALLS = 2, REGION = 1 << 30, POINTER_TYPE_CLASS = 5, MOST_LINES = 20 };

static void *library;
static char *region;
static const struct record *seen;
static const char *volatile current;
static int n_wrong;

static void wrong(const char *what, const char *which) {
    if (n_wrong++ < MOST_LINES) printf("%s: %s%s\n", current, what, which);
}

static void *find(const char *function) {
    current = function;
    void *address = dlsym(library, function);
    if (!address) wrong("is not exported", "");
    return address;
}

/* An address in the region that follows from the random bytes there, with room behind it. */
static void *inside(const void *bytes) {
    uint32_t place;
    memcpy(&place, bytes, sizeof place);
    return region + place % (REGION / 2) / 64 * 64;
}

/* One call was made, of this function, with so many arguments. */
static bool arrived(unsigned n_before, unsigned n_arguments) {
    if (seen->n_calls != n_before + 1) {
        wrong(seen->n_calls == n_before ? "never arrived" : "arrived more than once", "");
        return false;
    }
    if (strcmp(seen->function, current) != 0) {
        wrong("arrived as ", seen->function);
        return false;
    }
    if (seen->misalignment) wrong("has its stack misaligned", "");
    if (seen->n_arguments != n_arguments) wrong("has another number of arguments", "");
    return true;
}

static void compare(unsigned place, const void *given, size_t size, const char *name) {
    const struct argument *came = &seen->arguments[place];
    if (came->size != size || memcmp(came->bytes, given, size) != 0) wrong("changed on its way: ", name);
}

#define CALL(name, members)                              \
    static void call_##name(void) {                      \
        __typeof__(name) *function = find(#name);        \
        for (int call = 0; function && call < CALLS; call++) { \
            struct { members } given;                    \
            unsigned n_before = seen->n_calls, n_given = 0, n_came = 0; \
            (void)given;

#define GIVE(argument) \
            fill((void *)&given.argument, sizeof given.argument, current, n_before + 1, n_given++); \
            if (__builtin_classify_type(given.argument) == POINTER_TYPE_CLASS) { \
                void *address = inside((void *)&given.argument);             \
                memcpy((void *)&given.argument, &address, sizeof address);   \
            }

#define MAKE(name, arguments)                            \
            __typeof__(name arguments) result = function arguments, expected; \
            if (!arrived(n_before, n_given)) return;     \
            fill(&expected, sizeof expected, current, n_before + 1, RESULT); \
            if (memcmp(&result, &expected, sizeof result) != 0) wrong("changed: the result", "");

#define CAME(argument) \
            compare(n_came++, (void *)&given.argument, sizeof given.argument, #argument);

#define DONE                                             \
        }                                                \
    }

static sigjmp_buf next_call;

static void died(int signal) { siglongjmp(next_call, signal); }

static void *opened(const char *path) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        printf("%s\n", dlerror());
        exit(2);
    }
    return handle;
}

static bool is_among(const char *name, char **names) {
    for (; *names; names++)
        if (strcmp(name, *names) == 0) return true;
    return false;
}

struct call {
    const char *function;
    void (*make)(void);
};

static int run(char **arguments, const struct call *calls, size_t n_calls) {
    signal(SIGSEGV, died);
    signal(SIGBUS, died);
    signal(SIGILL, died);
    library = opened(arguments[1]);
    const struct record *(*record)(void) = dlsym(opened(arguments[2]), "sublet_record");
    seen = record();
    int access = strcmp(arguments[3], "readable") == 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    region = mmap(NULL, REGION, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) return 2;
    alarm(60); /* a call that died may have left a lock behind */
    int n_made = 0;
    for (size_t i = 0; i < n_calls; i++) {
        if (is_among(calls[i].function, arguments + 4)) continue;
        if (sigsetjmp(next_call, 1) == 0) calls[i].make();
        else wrong("the program died in this call", "");
        n_made++;
    }
    if (n_wrong > 0) printf("%d in all\n", n_wrong);
    else printf("%d functions\n", n_made);
    return n_wrong > 0;
}
