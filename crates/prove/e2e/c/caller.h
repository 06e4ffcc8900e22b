/* Calls every function of a library, more than once because the first call of a name finds its
 * way and the next one knows it, and compares what the recorder behind the library saw. Usage:
 *
 *     caller LIBRARY RECORDER blind [NAME…]      all functions but those named
 *     caller LIBRARY RECORDER readable [NAME…]   the same; the library may follow pointers
 *     caller LIBRARY RECORDER tenant [?NAME | !NAME…]
 *
 * Pointers lead into a region of their own: zeros where they may be followed, else nothing, so
 * that a library which looks behind one dies.
 *
 * As a tenant the library may ask the driver for itself too, each function is called with a
 * driver that refuses and with one that grants, and numbers are small, so that all that is asked
 * together is within the tenant's limit. `?` marks a function whose answer is the library's own
 * business: it must not look like one that arrives unchanged. `!` marks one that the library
 * refuses: it never arrives. In the end the program waits until its input closes.
 *
 * The calls are generated; each is made of these words:
 *
 *     CALL(cuMemAlloc_v2, CUdeviceptr *dptr; size_t bytesize;)
 *         GIVE(dptr)
 *         GIVE(bytesize)
 *         MAKE(cuMemAlloc_v2, (given.dptr, given.bytesize))
 *     DONE
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "record.h"

enum { REFUSED_CALLS = 2, GRANTED_CALLS = 2, REGION = 1 << 30, MOST_LINES = 20 };
enum { INTEGER_TYPE_CLASS = 1, ENUMERAL_TYPE_CLASS = 3, POINTER_TYPE_CLASS = 5 };
enum { NO_PERMISSION = 4 /* NVML_ERROR_NO_PERMISSION; no function of libcuda is refused */ };
static const uint64_t SMALL = 0xfff;

enum what { ARRIVES, ANSWERED, DENIED };

struct given {
    const char *name;
    const void *bytes;
    size_t size;
};

static void *library;
static char *region;
static struct record *record;
static bool is_tenant;
static const char *volatile current;
static enum what expected_of_current;
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
static void lead_inside(void *bytes) {
    uint32_t place;
    memcpy(&place, bytes, sizeof place);
    char *address = region + place % (REGION / 2) / 64 * 64;
    memcpy(bytes, &address, sizeof address);
}

static void make_small(void *bytes, size_t size) {
    uint64_t number = 0;
    memcpy(&number, bytes, size);
    number &= SMALL;
    memcpy(bytes, &number, size);
}

static void give(struct given *to, const char *name, void *bytes, size_t size, int type_class) {
    *to = (struct given){name, bytes, size};
    if (type_class == POINTER_TYPE_CLASS) lead_inside(bytes);
    else if (is_tenant && (type_class == INTEGER_TYPE_CLASS || type_class == ENUMERAL_TYPE_CLASS))
        make_small(bytes, size);
}

/* The name of an argument that is not what was given; null if there is none. */
static const char *changed(const struct came *came, const struct given *given, unsigned n) {
    for (unsigned i = 0; i < n; i++)
        if (came->arguments[i].size != given[i].size
            || memcmp(came->arguments[i].bytes, given[i].bytes, given[i].size) != 0)
            return given[i].name;
    return NULL;
}

/* Says what is wrong with the calls that came, of which one should be the one that was made. */
static const char *fault_of(const struct given *given, unsigned n, const char **which) {
    if (record->n_kept == 0) return "never arrived";
    if (record->n_kept > MOST_KEPT) return "arrived more than once";
    const char *fault = NULL;
    unsigned n_right = 0;
    for (unsigned i = 0; i < record->n_kept; i++) {
        const struct came *came = &record->kept[i];
        *which = "";
        if (strcmp(came->function, current) != 0) fault = "arrived as ", *which = came->function;
        else if (came->misalignment) fault = "has its stack misaligned";
        else if (came->n_arguments != n) fault = "has another number of arguments";
        else if ((*which = changed(came, given, n))) fault = "changed on its way: ";
        else n_right++;
    }
    /* A tenant's library may call the same function for itself. */
    if (n_right == 1 && (is_tenant || record->n_kept == 1)) return NULL;
    return n_right > 1 || !fault ? "arrived more than once" : fault;
}

/* Looks at a call that has returned. True if it was as if there was no library. */
static bool judge(const struct given *given, unsigned n, const void *result, size_t size) {
    unsigned char expected[MOST_BYTES];
    const char *which = "", *fault = fault_of(given, n, &which);
    answer_of(record, current, expected, size);
    bool is_result = memcmp(result, expected, size) == 0;
    if (expected_of_current == DENIED) {
        uint32_t code = 0;
        memcpy(&code, result, sizeof code);
        if (record->n_kept > 0) wrong("is to be denied, and arrived", "");
        else if (code != NO_PERMISSION) wrong("is to be denied, and is not", "");
    } else if (expected_of_current == ARRIVES) {
        if (fault) wrong(fault, which ? which : "");
        else if (!is_result) wrong("changed: the result", "");
    }
    return !fault && is_result;
}

static void await_call(int call) {
    record->awaited = is_tenant ? current : NULL;
    record->grants = call >= REFUSED_CALLS;
    record->number++;
    record->n_kept = 0;
}

#define CALL(name, members)                                                      \
    static void call_##name(void) {                                              \
        __typeof__(name) *function = find(#name);                                \
        int n_calls = !function ? 0 : REFUSED_CALLS + (is_tenant ? GRANTED_CALLS : 0); \
        bool is_plain = true;                                                    \
        for (int call = 0; call < n_calls; call++) {                             \
            struct { members } given;                                            \
            struct given all[MOST_ARGUMENTS];                                    \
            unsigned n_given = 0;                                                \
            (void)given;                                                         \
            await_call(call);

#define GIVE(argument)                                                           \
            fill((void *)&given.argument, sizeof given.argument, current, record->number, n_given); \
            give(&all[n_given++], #argument, (void *)&given.argument, sizeof given.argument, \
                 __builtin_classify_type(given.argument));

#define MAKE(name, arguments)                                                    \
            __typeof__(name arguments) result = function arguments;              \
            is_plain &= judge(all, n_given, &result, sizeof result);

#define DONE                                                                     \
        }                                                                        \
        if (n_calls > 0 && is_plain && expected_of_current == ANSWERED)          \
            wrong("arrives unchanged, and is said not to", "");                  \
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

static bool is_among(const char *mark, const char *name, char **names) {
    size_t length = strlen(mark);
    for (; *names; names++)
        if (strncmp(*names, mark, length) == 0 && strcmp(*names + length, name) == 0) return true;
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
    is_tenant = strcmp(arguments[3], "tenant") == 0;
    library = opened(arguments[1]);
    struct record *(*of_recorder)(void) = (struct record *(*)(void))dlsym(opened(arguments[2]), "sublet_record");
    record = of_recorder();
    int access = strcmp(arguments[3], "blind") == 0 ? PROT_NONE : PROT_READ | PROT_WRITE;
    region = mmap(NULL, REGION, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) return 2;
    alarm(60); /* a call that died may have left a lock behind */
    int n_made = 0;
    for (size_t i = 0; i < n_calls; i++) {
        const char *name = calls[i].function;
        if (is_among("", name, arguments + 4)) continue;
        expected_of_current = is_among("?", name, arguments + 4) ? ANSWERED
            : is_among("!", name, arguments + 4) ? DENIED : ARRIVES;
        if (sigsetjmp(next_call, 1) == 0) calls[i].make();
        else wrong("the program died in this call", "");
        n_made++;
    }
    if (n_wrong > 0) printf("%d in all\n", n_wrong);
    else printf("%d functions\n", n_made);
    fflush(stdout);
    alarm(0);
    while (is_tenant && getchar() != EOF) {}
    return n_wrong > 0;
}
