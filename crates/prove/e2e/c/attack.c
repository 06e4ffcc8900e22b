/* What a program of a job may try against the arbiter. It has no rights that the job has not,
 * and tries each thing in the plainest way. What came of it, it prints: a line for each try,
 * with `0` for a success or the name of the error. Judging is for the test that runs it.
 *
 *   attack say SOCKET FILE               send the file as one message; print the answer in hex
 *   attack pages SOCKET FILE             say hello; try to change the pages that come with it
 *   attack process PID                   try to read and write that process
 *   attack fuzz SOCKET FILE SEED COUNT   send random messages, some like the file
 *   attack crowd SOCKET COUNT            connect so often, say nothing, and wait for the end of
 *                                        the input
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

static void tell(const char *what, int failed) {
  printf("%s %s\n", what, failed ? strerrorname_np(errno) : "0");
  fflush(stdout);
}

static int meet(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address) != 0) {
    if (sock >= 0) close(sock);
    return -1;
  }
  struct timeval patience = {.tv_sec = 10};
  setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  return sock;
}

static size_t read_file(const char *path, unsigned char *into, size_t room) {
  FILE *file = fopen(path, "rb");
  if (!file) {
    perror(path);
    exit(2);
  }
  size_t size = fread(into, 1, room, file);
  fclose(file);
  return size;
}

/* Receives one message and up to four descriptors. */
static ssize_t hear(int sock, unsigned char *into, size_t room, int *fds, int *n_fds) {
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(4 * sizeof(int))];
  } control;
  struct iovec part = {into, room};
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = control.bytes,
                           .msg_controllen = sizeof control.bytes};
  ssize_t size = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
  *n_fds = 0;
  if (size < 0) return size;
  for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_type != SCM_RIGHTS) continue;
    *n_fds = (int)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(fds, CMSG_DATA(part), (size_t)*n_fds * sizeof(int));
  }
  return size;
}

static void try_page(const char *name, int fd) {
  char what[64], path[64];
  struct stat about;
  fstat(fd, &about);
  size_t size = (size_t)about.st_size;
  unsigned long long zero = 0;
#define TRY(label, failed)                              \
  do {                                                  \
    snprintf(what, sizeof what, "%s.%s", name, label);  \
    tell(what, failed);                                 \
  } while (0)
  TRY("map", mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  void *page = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
  TRY("protect", page == MAP_FAILED || mprotect(page, size, PROT_READ | PROT_WRITE) != 0);
  TRY("shrink", ftruncate(fd, 0) != 0);
  TRY("grow", ftruncate(fd, about.st_size * 2) != 0);
  TRY("seal", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0);
  TRY("punch", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, about.st_size) != 0);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int again = open(path, O_RDWR | O_CLOEXEC);
  TRY("reopen-map", again < 0 || mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) ==
                                     MAP_FAILED);
  /* Last, because the ledger can be written: it is the job's own account that is spoilt. */
  TRY("write", pwrite(fd, &zero, 0, 0) != 0 || pwrite(fd, &zero, 8, about.st_size - 8) != 8);
#undef TRY
}

static int pages(const char *path, const char *file) {
  unsigned char hello[4096], answer[4096];
  size_t size = read_file(file, hello, sizeof hello);
  int fds[4], n_fds = 0;
  int sock = meet(path);
  tell("connect", sock < 0);
  if (sock < 0) return 1;
  tell("hello", send(sock, hello, size, MSG_NOSIGNAL) != (ssize_t)size);
  ssize_t got = hear(sock, answer, sizeof answer, fds, &n_fds);
  printf("answer %zd\ndescriptors %d\n", got, n_fds);
  if (n_fds != 2) return 1;
  try_page("control", fds[0]);
  try_page("ledger", fds[1]);
  return 0;
}

static void try_process(int pid) {
  char path[64], word[8] = {0};
  const char *files[] = {"mem", "maps", "fd", "environ", "auxv"};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    char what[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, files[i]);
    snprintf(what, sizeof what, "read-%s", files[i]);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    tell(what, fd < 0);
  }
  snprintf(path, sizeof path, "/proc/%d/mem", pid);
  tell("write-mem", open(path, O_RDWR | O_CLOEXEC) < 0);
  /* Any address: the right to look is asked for before the address is looked at. */
  struct iovec here = {word, sizeof word}, there = {(void *)0x1000, sizeof word};
  tell("vm-read", process_vm_readv(pid, &here, 1, &there, 1, 0) < 0);
  tell("vm-write", process_vm_writev(pid, &here, 1, &there, 1, 0) < 0);
  tell("trace", ptrace(PTRACE_SEIZE, pid, 0, 0) != 0);
  tell("attach", ptrace(PTRACE_ATTACH, pid, 0, 0) != 0);
  int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
  int taken = -1;
  for (int fd = 0; fd < 64 && taken < 0; fd++) {
    taken = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
    if (taken < 0 && errno != EBADF) break;
  }
  tell("take-descriptor", taken < 0);
}

static unsigned long long chance_state;

static unsigned chance(unsigned below) {
  chance_state = chance_state * 6364136223846793005ULL + 1442695040888963407ULL;
  return (unsigned)(chance_state >> 33) % below;
}

static int fuzz(const char *path, const char *file, unsigned long long seed, int count) {
  static unsigned char like[4096], message[8192], answer[4096];
  size_t size = read_file(file, like, sizeof like);
  int sent = 0, met = 0, sock = -1;
  chance_state = seed;
  for (int i = 0; i < count; i++) {
    if (sock < 0) sock = meet(path);
    if (sock < 0) continue;
    met++;
    size_t length = chance(2) ? size : chance(sizeof message);
    if (length == size) {
      memcpy(message, like, size);
      for (unsigned n = chance(4); n > 0; n--) message[chance((unsigned)size)] = (unsigned char)chance(256);
    } else {
      for (size_t at = 0; at < length; at++) message[at] = (unsigned char)chance(256);
      if (chance(2)) memcpy(message, like, length < 8 ? length : 8);
    }
    /* Descriptors that mean nothing: this program's own standard input, up to four times. */
    union {
      struct cmsghdr align;
      char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec part = {message, length};
    struct msghdr out = {.msg_iov = &part, .msg_iovlen = 1};
    unsigned n_fds = chance(5);
    if (n_fds > 0) {
      out.msg_control = control.bytes;
      out.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
      control.align.cmsg_level = SOL_SOCKET;
      control.align.cmsg_type = SCM_RIGHTS;
      control.align.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
    }
    if (sendmsg(sock, &out, MSG_NOSIGNAL) >= 0) sent++;
    /* Half of the time it does not wait for an answer, and sometimes it stays silent. */
    if (chance(2)) (void)!recv(sock, answer, sizeof answer, chance(2) ? 0 : MSG_DONTWAIT);
    if (chance(3)) {
      close(sock);
      sock = -1;
    }
  }
  printf("sent %d\nmet %d\n", sent, met);
  return 0;
}

static int crowd(const char *path, int count) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  int met = 0;
  for (int i = 0; i < count; i++) {
    int sock = socket(AF_UNIX, SOCK_STREAM, 0);
    met += sock >= 0 && connect(sock, (struct sockaddr *)&address, sizeof address) == 0;
  }
  printf("met %d\n", met);
  fflush(stdout);
  while (getchar() != EOF) continue;
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 4 && !strcmp(argv[1], "say")) {
    unsigned char message[4096], answer[4096];
    size_t size = read_file(argv[3], message, sizeof message);
    int fds[4], n_fds, sock = meet(argv[2]);
    if (sock < 0 || send(sock, message, size, MSG_NOSIGNAL) < 0) {
      perror(argv[2]);
      return 1;
    }
    ssize_t got = hear(sock, answer, sizeof answer, fds, &n_fds);
    for (ssize_t i = 0; i < got; i++) printf("%02x", answer[i]);
    printf("\n");
    return 0;
  }
  if (argc == 4 && !strcmp(argv[1], "pages")) return pages(argv[2], argv[3]);
  if (argc == 3 && !strcmp(argv[1], "process")) {
    try_process(atoi(argv[2]));
    return 0;
  }
  if (argc == 6 && !strcmp(argv[1], "fuzz"))
    return fuzz(argv[2], argv[3], strtoull(argv[4], NULL, 10), atoi(argv[5]));
  if (argc == 4 && !strcmp(argv[1], "crowd")) return crowd(argv[2], atoi(argv[3]));
  fprintf(stderr, "see the head of this program's source\n");
  return 2;
}
