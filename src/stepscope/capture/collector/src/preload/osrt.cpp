// Preloaded on request: notes calls of the C library in which a thread waits, and waits for
// Python's global lock. It only measures; the collector's library records.
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

namespace {

constexpr uint64_t kThresholdNs = 1000;  // as Nsight Systems: shorter calls did not wait
using Record = void (*)(const char*, const char*, uint64_t, uint64_t);
Record g_record = nullptr;  // atomic
// Preloaded, so there is room for these in every thread from the start.
__thread int t_inside __attribute__((tls_model("initial-exec")));
__thread uintptr_t t_page __attribute__((tls_model("initial-exec")));
__thread int t_page_is_python __attribute__((tls_model("initial-exec")));

uint64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}

void note(const char* domain, const char* name, uint64_t begin) {
  uint64_t end = now();
  Record record = __atomic_load_n(&g_record, __ATOMIC_ACQUIRE);
  if (end - begin < kThresholdNs || t_inside || !record) return;
  int error = errno;
  t_inside = 1;
  record(domain, name, begin, end);
  t_inside = 0;
  errno = error;
}

// Whether code is Python's: only its global lock waits there with a time limit.
bool is_python(void* address) {
  uintptr_t page = reinterpret_cast<uintptr_t>(address) & ~uintptr_t{4095};
  if (t_page == page) return t_page_is_python;
  Dl_info info;
  bool found = false;
  if (dladdr(address, &info) && info.dli_fname) {
    const char* name = strrchr(info.dli_fname, '/');
    name = name ? name + 1 : info.dli_fname;
    found = !strncmp(name, "python", 6) || !strncmp(name, "libpython", 9);
  }
  t_page_is_python = found;
  t_page = page;
  return found;
}

// Condition variables have an old version of the same name, which dlsym may find first.
void* original(const char* name) {
  void* found = nullptr;
#if defined(__x86_64__)
  if (!strncmp(name, "pthread_cond_", 13)) found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
#endif
  return found ? found : dlsym(RTLD_NEXT, name);
}

}  // namespace

#define FIND(result, name, parameters)                                               \
  using Function_##name = result(*) parameters;                                      \
  Function_##name real_##name = nullptr;                                             \
  __attribute__((constructor)) void find_##name() {                                  \
    if (!real_##name) real_##name = reinterpret_cast<Function_##name>(original(#name)); \
  }

#define WRAP_IN(domain, result, name, parameters, arguments)                    \
  namespace {                                                                   \
  FIND(result, name, parameters)                                                \
  }                                                                             \
  extern "C" __attribute__((visibility("default"))) result name parameters {    \
    find_##name();                                                              \
    uint64_t begin = now();                                                     \
    result value = real_##name arguments;                                       \
    note(domain, #name, begin);                                                 \
    return value;                                                               \
  }
#define WRAP(result, name, parameters, arguments) \
  WRAP_IN("stepscope osrt", result, name, parameters, arguments)

WRAP(int, poll, (pollfd * f, nfds_t n, int t), (f, n, t))
WRAP(int, ppoll, (pollfd * f, nfds_t n, const timespec* t, const sigset_t* s), (f, n, t, s))
WRAP(int, select, (int n, fd_set* r, fd_set* w, fd_set* e, timeval* t), (n, r, w, e, t))
WRAP(int, epoll_wait, (int e, epoll_event* v, int n, int t), (e, v, n, t))
WRAP(ssize_t, read, (int f, void* b, size_t n), (f, b, n))
WRAP(ssize_t, write, (int f, const void* b, size_t n), (f, b, n))
WRAP(ssize_t, pread, (int f, void* b, size_t n, off_t o), (f, b, n, o))
WRAP(ssize_t, recv, (int f, void* b, size_t n, int g), (f, b, n, g))
WRAP(ssize_t, recvmsg, (int f, msghdr* m, int g), (f, m, g))
WRAP(int, fsync, (int f), (f))
WRAP(int, flock, (int f, int o), (f, o))
WRAP(pid_t, waitpid, (pid_t p, int* s, int o), (p, s, o))
WRAP(int, sem_wait, (sem_t * s), (s))
WRAP(int, sem_timedwait, (sem_t * s, const timespec* t), (s, t))
WRAP(int, sem_clockwait, (sem_t * s, clockid_t c, const timespec* t), (s, c, t))
WRAP(int, pthread_join, (pthread_t t, void** v), (t, v))
WRAP(int, pthread_cond_wait, (pthread_cond_t * c, pthread_mutex_t* m), (c, m))
WRAP(int, nanosleep, (const timespec* t, timespec* r), (t, r))
WRAP(int, clock_nanosleep, (clockid_t c, int f, const timespec* t, timespec* r), (c, f, t, r))
WRAP(int, usleep, (useconds_t t), (t))

#define WRAP_TIMED(name, parameters, arguments)                                              \
  WRAP_IN(is_python(__builtin_return_address(0)) ? "stepscope gil" : "stepscope osrt", int, name, \
          parameters, arguments)

WRAP_TIMED(pthread_cond_timedwait, (pthread_cond_t * c, pthread_mutex_t* m, const timespec* t),
           (c, m, t))
WRAP_TIMED(pthread_cond_clockwait,
           (pthread_cond_t * c, pthread_mutex_t* m, clockid_t k, const timespec* t), (c, m, k, t))

// The collector tells where to record once it lives: to look for it from here could deadlock in
// the loader.
extern "C" __attribute__((visibility("default"))) void stepscope_record_waits(Record record) {
  __atomic_store_n(&g_record, record, __ATOMIC_RELEASE);
}
