/* A CUDA program that does what it is told: one call a line on standard input, one answer a line
 * on standard output, which is the code that the call gave.
 *
 *   calls [LIBCUDA [LIBNVIDIA-ML]]     opened when they are first needed; by their usual names
 *
 * Arguments are numbers (16M, 0x10, -1), `&name` for where a variable is, `name` for what is in
 * it, `null`, and
 *
 *   "text                     the text, without spaces
 *   struct:SIZE:WORD,WORD     fresh memory of so many bytes that begins with these 32-bit words;
 *                             `$name` is the 64 bits of a variable
 *   file:PATH                 what is in that file, with a zero at its end
 *   list:name,name            pointers to these variables, as a launch takes its parameters
 *   value:name                the 64 bytes that the variable points to, passed by value
 *   bytes:HEX                 fresh memory with these bytes
 *
 * A function is named, or `@name` is one whose address is in a variable. Functions that begin
 * with `fake_` are those of the library that FAKE_DRIVER names; all 64 bits of their result are
 * the answer. Libraries lead to libc, so that its functions are calls too: `getpid`, `close fd`.
 * What is no call:
 *
 *   print name, text name, word name OFFSET, long name OFFSET, hex name SIZE
 *                             what is in it, or where it points: 32 bits, 64, bytes
 *   set name ARGUMENT
 *   let name CALL             all 64 bits of what the call gives, into the variable
 *   where FUNCTION            the file it is in
 *   same name FUNCTION        `yes` if the variable has its address
 *   repeat COUNT CALL ; ...   answers with COUNT if all of it gave 0
 *   races FUNCTION BYTES TIMES   four threads, in the context `ctx`, allocate by this function
 *                             and free, so many times each; `had` if any of them got anything
 *   start N CALL, join N      a thread of its own, number N below 64, makes the call, in the
 *                             context `ctx`; what it gave, once the thread has ended
 *   to N LINE, from N         a child of its own, number N, which was forked when it was first
 *                             told something, gets the line; its answer
 *   in N LINE                 both
 *   end N                     closes the child's input; the status with which it ends
 *   listen PATH, send name PATH, receive name   a descriptor through a socket with that name
 *
 * Nothing that is made here is freed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
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
typedef u64 (*function)(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64);

enum { REGISTERS = 6, MOST = 14, WORDS = 64, VARIABLES = 256 };

static struct {
  char name[32];
  u64 value;
} variables[VARIABLES];
static const char *library_names[2] = {"libcuda.so.1", "libnvidia-ml.so.1"};

static void give_up(const char *why, const char *what) {
  fprintf(stderr, "calls: %s: %s\n", why, what);
  exit(2);
}

static u64 *variable(const char *name) {
  for (int i = 0; i < VARIABLES; i++) {
    if (!*variables[i].name) snprintf(variables[i].name, sizeof variables[i].name, "%s", name);
    if (!strcmp(variables[i].name, name)) return &variables[i].value;
  }
  give_up("too many variables", name);
  return 0;
}

static u64 number(const char *text) {
  char *end;
  u64 value = strtoull(text, &end, 0);
  int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
  return value << shift;
}

static u64 made_struct(const char *text) {
  char *rest;
  size_t size = strtoull(text, &rest, 0);
  uint32_t *made = calloc(1, size);
  for (size_t i = 0; *rest; i++) {
    if (rest[1] != '$') {
      made[i] = (uint32_t)strtoll(rest + 1, &rest, 0);
      continue;
    }
    char name[32] = "";
    size_t length = strcspn(rest += 2, ",");
    memcpy(name, rest, length < sizeof name ? length : sizeof name - 1);
    memcpy(made + i++, variable(name), sizeof(u64));
    rest += length;
  }
  return (u64)made;
}

static u64 made_bytes(const char *hex) {
  unsigned char *made = calloc(1, strlen(hex) / 2 + 1);
  for (size_t i = 0; hex[2 * i] && sscanf(hex + 2 * i, "%2hhx", made + i) == 1; i++) continue;
  return (u64)made;
}

static u64 contents(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) give_up("cannot open", path);
  char *made = calloc(1, 1 << 20);
  if (fread(made, 1, (1 << 20) - 1, file) == 0) give_up("nothing in", path);
  fclose(file);
  return (u64)made;
}

static u64 list(char *names) {
  u64 *made = calloc(WORDS, sizeof *made);
  char *left;
  int n = 0;
  for (char *name = strtok_r(names, ",", &left); name; name = strtok_r(0, ",", &left))
    made[n++] = (u64)variable(name);
  return (u64)made;
}

/* What follows `prefix` in the text, if it begins so. */
static char *after(char *text, const char *prefix) {
  size_t length = strlen(prefix);
  return strncmp(text, prefix, length) ? 0 : text + length;
}

static u64 argument(char *text) {
  char *rest;
  if (*text == '&') return (u64)variable(text + 1);
  if (*text == '"') return (u64)strdup(text + 1);
  if (!strcmp(text, "null")) return 0;
  if ((rest = after(text, "struct:"))) return made_struct(rest);
  if ((rest = after(text, "bytes:"))) return made_bytes(rest);
  if ((rest = after(text, "file:"))) return contents(rest);
  if ((rest = after(text, "list:"))) return list(strdupa(rest));
  if ((*text >= '0' && *text <= '9') || *text == '-') return number(text);
  return *variable(text);
}

static function find(const char *name) {
  static void *libraries[2];
  if (*name == '@') return (function)*variable(name + 1);
  if (!strncmp(name, "fake_", 5)) {
    void *fake = dlopen(getenv("FAKE_DRIVER"), RTLD_NOW | RTLD_LOCAL);
    if (!fake) give_up("cannot load", dlerror());
    return (function)dlsym(fake, name);
  }
  int which = !strncmp(name, "nvml", 4);
  if (!libraries[which]) libraries[which] = dlopen(library_names[which], RTLD_NOW);
  if (!libraries[which]) give_up("cannot load", dlerror());
  return (function)dlsym(libraries[which], name);
}

/* A struct that is passed by value lies on the stack, after what registers have no room for. */
static u64 call(char **words, int n) {
  u64 a[MOST] = {0};
  int next = 0;
  for (int i = 1; i < n; i++) {
    char *by_value = after(words[i], "value:");
    if (by_value) memcpy(a + REGISTERS, (void *)*variable(by_value), 64);
    else if (next < MOST) a[next++] = argument(words[i]);
  }
  function f = find(words[0]);
  if (!f) give_up("no such function", words[0]);
  return f(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13]);
}

static void repeat(char **words, int n) {
  u64 times = number(words[1]);
  for (u64 round = 0; round < times; round++) {
    for (int from = 2, to; from < n; from = to + 1) {
      for (to = from; to < n && strcmp(words[to], ";"); to++) continue;
      int code = (int)call(words + from, to - from);
      if (code) {
        printf("%d of %s in round %llu\n", code, words[from], (unsigned long long)round);
        return;
      }
    }
  }
  printf("%llu\n", (unsigned long long)times);
}

static void where(const char *name) {
  Dl_info about;
  void *found = find(name);
  if (!found) printf("nowhere\n");
  else printf("%s\n", dladdr(found, &about) && about.dli_fname ? about.dli_fname : "unknown");
}

static void tell(u64 value) { printf("%llu\n", (unsigned long long)value); }

static void tell_text(const char *text) { printf("%s\n", text ? text : "null"); }

/* `verb name OFFSET`: so far behind where the variable points. */
static u64 at(char **words) { return *variable(words[1]) + number(words[2]); }

static void hex(const unsigned char *bytes, u64 size) {
  for (u64 i = 0; i < size; i++) printf("%02x", bytes[i]);
  printf("\n");
}

static void *race(void *words) {
  char **word = words;
  u64 bytes = number(word[2]), times = number(word[3]), had = 0, ctx = *variable("ctx");
  function get = find(word[1]), put = find("cuMemFree_v2");
  find("cuCtxSetCurrent")(ctx, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  for (u64 i = 0; i < times; i++) {
    u64 address = 0;
    if ((int)get((u64)&address, bytes, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)) continue;
    put(address, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    had++;
  }
  return (void *)had;
}

static void races(char **words) {
  pthread_t threads[4];
  u64 all = 0;
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, race, words);
  for (int i = 0; i < 4; i++) {
    void *had;
    pthread_join(threads[i], &had);
    all += (u64)had;
  }
  printf("%s\n", all ? "had" : "nothing");
}

static struct {
  pthread_t id;
  char *words[WORDS];
  int n;
} started[64];

static void *make_call(void *number) {
  int at = (int)(u64)number;
  find("cuCtxSetCurrent")(*variable("ctx"), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  return (void *)call(started[at].words, started[at].n);
}

static void start(char **words, int n) {
  int at = atoi(words[1]) & 63;
  started[at].n = n - 2;
  for (int i = 2; i < n; i++) started[at].words[i - 2] = strdup(words[i]);
  printf("%d\n", pthread_create(&started[at].id, 0, make_call, (void *)(u64)at));
}

static void join(int at) {
  void *gave;
  pthread_join(started[at & 63].id, &gave);
  printf("%d\n", (int)(u64)gave);
}

/* Descriptors go through a socket with a name, as programs pass them. */
static struct sockaddr_un named(const char *path) {
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  snprintf(name.sun_path, sizeof name.sun_path, "%s", path);
  return name;
}

static int listen_at(const char *path) {
  struct sockaddr_un name = named(path);
  int end = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  *variable("socket") = (u64)end;
  return bind(end, (struct sockaddr *)&name, sizeof name);
}

static int pass(int end, int fd, const char *path) {
  char byte = 0;
  union {
    char room[64];
    struct cmsghdr align;
  } control = {0};
  struct iovec part = {&byte, 1};
  struct sockaddr_un name;
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = CMSG_SPACE(sizeof fd)};
  if (path) {
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    name = named(path);
    message.msg_name = &name;
    message.msg_namelen = sizeof name;
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return sendmsg(end, &message, 0) == 1 ? 0 : -1;
  }
  if (recvmsg(end, &message, 0) != 1 || !CMSG_FIRSTHDR(&message)) return -1;
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}

static int send_descriptor(const char *name, const char *path) {
  int end = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  int result = pass(end, (int)*variable(name), path);
  close(end);
  return result;
}

static int receive_descriptor(const char *name) {
  int fd = pass((int)*variable("socket"), -1, 0);
  *variable(name) = (u64)(uint32_t)fd;
  return fd < 0 ? -1 : 0;
}

static void serve(void);

static struct {
  FILE *to, *from;
  pid_t pid;
} children[4];

static void make_child(int n) {
  int to[2], from[2];
  if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC)) give_up("no pipe", "for a child");
  if ((children[n].pid = fork()) == 0) {
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    close(to[1]); /* else its input never ends */
    serve();
    _exit(0);
  }
  close(to[0]);
  close(from[1]);
  children[n].to = fdopen(to[1], "w");
  children[n].from = fdopen(from[0], "r");
}

/* Tells a child a line, or hears its answer, or both. */
static void with_child(int tells, int hears, char *rest) {
  int n = atoi(rest) & 3;
  char answer[4096] = "it ended\n";
  if (!children[n].to) make_child(n);
  if (tells) {
    fputs(rest + strcspn(rest, " ") + 1, children[n].to);
    fflush(children[n].to);
  }
  if (!hears) {
    printf("0\n");
    return;
  }
  if (!fgets(answer, sizeof answer, children[n].from)) clearerr(children[n].from);
  fputs(answer, stdout);
}

static int end_child(int n) {
  int status = -1;
  if (!children[n].to) return status;
  fclose(children[n].to);
  fclose(children[n].from);
  waitpid(children[n].pid, &status, 0);
  children[n].to = children[n].from = NULL;
  return status;
}

static void run(char *line) {
  char *words[WORDS], *left;
  if (after(line, "to ")) return with_child(1, 0, line + 3);
  if (after(line, "from ")) return with_child(0, 1, line + 5);
  if (after(line, "in ")) return with_child(1, 1, line + 3);
  int n = 0;
  for (char *w = strtok_r(line, " \n", &left); w && n < WORDS; w = strtok_r(0, " \n", &left))
    words[n++] = w;
  if (!n) return;
  const char *verb = words[0];
  if (n == 2 && !strcmp(verb, "print")) tell(*variable(words[1]));
  else if (n == 2 && !strcmp(verb, "text")) tell_text((char *)*variable(words[1]));
  else if (n == 2 && !strcmp(verb, "where")) where(words[1]);
  else if (n == 3 && !strcmp(verb, "set")) *variable(words[1]) = argument(words[2]), printf("0\n");
  else if (n == 3 && !strcmp(verb, "word")) tell(*(uint32_t *)at(words));
  else if (n == 3 && !strcmp(verb, "long")) tell(*(u64 *)at(words));
  else if (n == 3 && !strcmp(verb, "hex")) hex((void *)*variable(words[1]), number(words[2]));
  else if (n > 2 && !strcmp(verb, "repeat")) repeat(words, n);
  else if (n > 2 && !strcmp(verb, "let")) *variable(words[1]) = call(words + 2, n - 2), printf("0\n");
  else if (n == 3 && !strcmp(verb, "same"))
    tell_text(*variable(words[1]) == (u64)find(words[2]) ? "yes" : "no");
  else if (n == 4 && !strcmp(verb, "races")) races(words);
  else if (n > 2 && !strcmp(verb, "start")) start(words, n);
  else if (n == 2 && !strcmp(verb, "join")) join(atoi(words[1]));
  else if (n == 2 && !strcmp(verb, "end")) printf("%d\n", end_child(atoi(words[1]) & 3));
  else if (n == 2 && !strcmp(verb, "listen")) printf("%d\n", listen_at(words[1]));
  else if (n == 3 && !strcmp(verb, "send")) printf("%d\n", send_descriptor(words[1], words[2]));
  else if (n == 2 && !strcmp(verb, "receive")) printf("%d\n", receive_descriptor(words[1]));
  else if (after(words[0], "fake_")) tell(call(words, n));
  else printf("%d\n", (int)call(words, n));
}

static void serve(void) {
  char line[4096];
  while (fgets(line, sizeof line, stdin)) {
    run(line);
    fflush(stdout);
  }
}

int main(int argc, char **argv) {
  for (int i = 1; i < argc && i < 3; i++) library_names[i - 1] = argv[i];
  setvbuf(stdin, NULL, _IONBF, 0); /* what comes later is for whoever reads it */
  serve();
  return 0;
}
