/* A CUDA program that does what it is told: one call a line on standard input, one answer a
 * line on standard output. Arguments are numbers (1M, 0x10), names of variables, `&name` to
 * have one written, `"text`, or one of the structs below. It reaches the driver as programs
 * do: by dlopen and dlsym, or through cuGetProcAddress.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef u64 (*function)(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64);

static struct { char name[32]; u64 value; } variables[256];
static void *driver;

static u64 *variable(const char *name) {
    for (int i = 0; i < 256; i++) {
        if (!strcmp(variables[i].name, name)) return &variables[i].value;
        if (!*variables[i].name) { snprintf(variables[i].name, 32, "%s", name); return &variables[i].value; }
    }
    abort();
}
static u64 number(const char *text) {
    char *end;
    u64 value = strtoull(text, &end, 0);
    return *end == 'K' ? value << 10 : *end == 'M' ? value << 20 : *end == 'G' ? value << 30 : value;
}
/* The structs are written into fresh memory and never freed. */
static u64 argument(char *text) {
    int a, b; unsigned long long w, h, d; unsigned format, channels, flags;
    if (*text == '&') return (u64)variable(text + 1);
    if (*text == '"') return (u64)strdup(text + 1);
    if (!strcmp(text, "NULL")) return 0;
    if (sscanf(text, "location:%d:%d", &a, &b) == 2) { /* also of a pool */
        int *made = calloc(32, sizeof *made); made[0] = 1; made[2] = a; made[3] = b; return (u64)made;
    }
    if (sscanf(text, "managed:%d:%d", &a, &b) == 2) {
        int *made = calloc(32, sizeof *made); made[0] = 2; made[2] = a; made[3] = b; return (u64)made;
    }
    if (sscanf(text, "array:%llu:%llu:%llu:%u:%u:%u", &w, &h, &d, &format, &channels, &flags) == 6) {
        u64 *made = calloc(8, 8); made[0] = w; made[1] = h; made[2] = d;
        made[3] = format | (u64)channels << 32; made[4] = flags; return (u64)made;
    }
    if (sscanf(text, "flat:%llu:%llu:%u:%u", &w, &h, &format, &channels) == 4) {
        u64 *made = calloc(8, 8); made[0] = w; made[1] = h; made[2] = format | (u64)channels << 32; return (u64)made;
    }
    if (!strncmp(text, "node:", 5)) { /* node:device:bytes */
        char *made = calloc(1, 128); int one = 1; char *rest;
        a = (int)strtol(text + 5, &rest, 0); u64 bytes = number(rest + 1);
        memcpy(made + 8, &one, 4); memcpy(made + 12, &a, 4); memcpy(made + 104, &bytes, 8); return (u64)made;
    }
    if (sscanf(text, "tiles:%llu:%u:%u:%u", &w, &format, &channels, &flags) == 4) { /* tiles:level:x:count:layer of `array`, to `handle` */
        u32 *box; u64 *made = calloc(16, 8);
        made[1] = *variable("array"); box = (u32 *)(made + 3);
        box[0] = (u32)w; box[1] = flags; box[2] = format; box[5] = channels; box[6] = box[7] = 1;
        made[7] = *variable("handle") ? 1 : 2; made[8] = *variable("handle"); return (u64)made;
    }
    if (!strncmp(text, "room:", 5)) { u64 *room = variable(text + 5); if (!*room) *room = (u64)calloc(64, 1); return *room; }
    if (!strncmp(text, "external:", 9)) { u64 *made = calloc(16, 8); made[3] = number(text + 9); return (u64)made; }
    if (*text >= '0' && *text <= '9') return number(text);
    return *variable(text);
}
static function find(const char *name) {
    void *found = 0;
    if (!strncmp(name, "fake_", 5)) {
        void *fake = dlopen(getenv("FAKE_DRIVER"), RTLD_NOW | RTLD_LOCAL);
        found = dlsym(fake, name);
    } else if (*name == '@') {
        found = (void *)*variable(name + 1);
    } else {
        if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
        found = driver ? dlsym(driver, name) : 0;
    }
    return (function)found;
}
static void call(char **words, int n) {
    u64 a[11] = {0};
    function f = find(words[0]);
    for (int i = 1; i < n && i < 12; i++) a[i - 1] = argument(words[i]);
    if (!f) { printf("no such function\n"); return; }
    u64 result = f(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]);
    if (!strcmp(words[0], "fake_told")) printf("%s\n", (char *)result);
    else if (!strncmp(words[0], "fake_", 5)) printf("%llu\n", (unsigned long long)result);
    else printf("%d\n", (int)result);
}
/* Descriptors go through a socket with a name, as programs pass them. */
static struct sockaddr_un named(const char *path) {
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    snprintf(name.sun_path, sizeof name.sun_path, "%s", path);
    return name;
}
static int pass(int socket, int fd, const char *path) {
    char byte = 0; union { char room[64]; struct cmsghdr align; } control = { 0 };
    struct iovec part = { &byte, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(sizeof fd) };
    struct sockaddr_un name;
    if (path) {
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        name = named(path); message.msg_name = &name; message.msg_namelen = sizeof name;
        header->cmsg_level = SOL_SOCKET; header->cmsg_type = SCM_RIGHTS; header->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
        return sendmsg(socket, &message, 0) == 1 ? 0 : -1;
    }
    if (recvmsg(socket, &message, 0) != 1 || !CMSG_FIRSTHDR(&message)) return -1;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}
/* cuIpcOpenMemHandle takes its 64 bytes by value. */
struct ipc { u64 words[8]; };
static int open_ipc(u64 *address, const struct ipc *handle) {
    int (*f)(u64 *, struct ipc, unsigned) = (int (*)(u64 *, struct ipc, unsigned))find("cuIpcOpenMemHandle_v2");
    return f(address, *handle, 1);
}
static void *race(void *words) {
    /* race SYMBOL BYTES TIMES: allocates and frees; a[0] counts what was had */
    char **w = words; u64 bytes = number(w[2]), times = number(w[3]), had = 0;
    function set = find("cuCtxSetCurrent"), get = find(w[1]), put = find("cuMemFree_v2");
    set(*variable("ctx"), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    for (u64 i = 0; i < times; i++) {
        u64 address = 0;
        if ((int)get((u64)&address, bytes, 0, 0, 0, 0, 0, 0, 0, 0, 0) == 0) { had++; put(address, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0); }
    }
    return (void *)had;
}
static void run(char *line) {
    char *words[16]; int n = 0;
    for (char *w = strtok(line, " \n"); w && n < 16; w = strtok(0, " \n")) words[n++] = w;
    if (!n) return;
    if (!strcmp(words[0], "print")) printf("%llu\n", (unsigned long long)*variable(words[1]));
    else if (!strcmp(words[0], "text")) printf("%s\n", *variable(words[1]) ? (char *)*variable(words[1]) : "NULL");
    else if (!strcmp(words[0], "set")) { *variable(words[1]) = argument(words[2]); printf("0\n"); }
    else if (!strcmp(words[0], "getenv")) printf("%s\n", getenv(words[1]) ? getenv(words[1]) : "(unset)");
    else if (!strcmp(words[0], "listen")) {
        int socket_fd = socket(AF_UNIX, SOCK_DGRAM, 0); struct sockaddr_un name = named(words[1]);
        *variable("socket") = (u64)socket_fd;
        printf("%d\n", bind(socket_fd, (struct sockaddr *)&name, sizeof name));
    }
    else if (!strcmp(words[0], "send")) { int out = socket(AF_UNIX, SOCK_DGRAM, 0); printf("%d\n", pass(out, (int)*variable(words[1]), words[2])); close(out); }
    else if (!strcmp(words[0], "receive")) { int fd = pass((int)*variable("socket"), -1, 0); *variable(words[1]) = (u64)(u32)fd; printf("%d\n", fd < 0 ? -1 : 0); }
    else if (!strcmp(words[0], "close")) printf("%d\n", close((int)*variable(words[1])));
    else if (!strcmp(words[0], "hex")) { for (int i = 0; i < 64; i++) printf("%02x", ((unsigned char *)argument(words[1]))[i]); printf("\n"); }
    else if (!strcmp(words[0], "unhex")) { unsigned char *room = (void *)argument(words[1]); for (int i = 0; i < 64; i++) { unsigned byte; sscanf(words[2] + 2 * i, "%2x", &byte); room[i] = (unsigned char)byte; } printf("0\n"); }
    else if (!strcmp(words[0], "open-ipc")) printf("%d\n", open_ipc(variable(words[1]), (void *)argument(words[2])));
    else if (!strcmp(words[0], "close-all")) { for (int fd = 3; fd < 1000; fd++) close(fd); printf("ok\n"); }
    else if (!strcmp(words[0], "races")) {
        pthread_t threads[4]; void *had;
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, race, words);
        u64 all = 0;
        for (int i = 0; i < 4; i++) { pthread_join(threads[i], &had); all += (u64)had; }
        printf("%s\n", all ? "had" : "nothing");
    }
    else if (!strcmp(words[0], "same")) printf("%s\n", *variable(words[1]) == (u64)dlsym(driver, words[2]) ? "ours" : "other");
    else if (!strcmp(words[0], "fork")) { /* the child goes on; the parent waits for it */
        fflush(stdout);
        pid_t child = fork();
        if (child) { int status; waitpid(child, &status, 0); printf("child ended %d\n", status); }
        else printf("in child\n");
    }
    else if (!strcmp(words[0], "exit")) { fflush(stdout); _exit(0); }
    else call(words, n);
}
int main(void) {
    char line[4096];
    /* One byte at a time: parent and child share standard input. */
    for (;;) {
        int n = 0; char c = 0;
        while (n < 4095 && read(0, &c, 1) == 1 && c != '\n') line[n++] = c;
        if (!n && c != '\n') return 0;
        line[n] = 0;
        run(line);
        fflush(stdout);
    }
}
