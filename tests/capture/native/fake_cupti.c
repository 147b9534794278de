/* A stand-in for libcupti.so.13: it keeps buffers as CUPTI does, and fills them with records laid
 * out as documented for the version that FAKE_CUPTI_VERSION names. A test drives it by fake_*. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef void (*Requested)(uint8_t**, size_t*, size_t*);
typedef void (*Completed)(void*, uint32_t, uint8_t*, size_t, size_t);
typedef void (*Callback)(void*, int, uint32_t, const void*);
typedef uint64_t (*Timestamp)(void);

static Requested g_requested;
static Completed g_completed;
static Callback g_callback;
static void* g_user;
static Timestamp g_timestamp;
static int g_enabled[64], g_callbacks[8][1024];
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t* g_buffer;
static size_t g_size, g_valid;
static uint32_t g_correlation;
static int g_calls_after_end;
static void (*g_at_end)(void); /* happens in the midst of the capture's end */
/* A graph that was made while its tracing was off must not be launched while it is on, and none may
 * be launched after the end of CUPTI: the driver then crashes, or fails. */
static int g_graphs, g_graphs_untraced, g_finalized;

#define EXPORT __attribute__((visibility("default")))

static uint32_t version(void) {
  const char* text = getenv("FAKE_CUPTI_VERSION");
  return text ? (uint32_t)atoi(text) : 130001;
}

EXPORT int cuptiGetVersion(uint32_t* v) { *v = version(); return 0; }
EXPORT int cuptiGetResultString(int r, const char** t) {
  *t = r == 39 ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : "CUPTI_ERROR_UNKNOWN";
  return 0;
}
EXPORT int cuptiSubscribe(void** s, Callback c, void* user) {
  if (getenv("FAKE_CUPTI_BUSY")) return 39;
  g_callback = c;
  g_user = user;
  *s = &g_callback;
  return 0;
}
EXPORT int cuptiUnsubscribe(void* s) {
  (void)s;
  g_callback = NULL;
  return 0;
}
EXPORT int cuptiFinalize(void) {
  if (!g_callback) return 1;
  g_callback = NULL;
  g_finalized = 1;
  memset(g_enabled, 0, sizeof g_enabled);
  return 0;
}
EXPORT int cuptiEnableCallback(uint32_t enable, void* s, int domain, uint32_t id) {
  (void)s;
  g_callbacks[domain][id] = (int)enable;
  return 0;
}
EXPORT int cuptiGetCallbackName(int domain, uint32_t id, const char** name) {
  static char names[8][1024][40];
  if (id >= 1024) return 1;
  const char* known = domain == 2 && id == 211 ? "cudaLaunchKernel_v7000"
                      : domain == 2 && id == 41 ? "cudaMemcpyAsync_v3020"
                      : domain == 2 && id == 51 ? "cudaMemsetAsync_v3020"
                      : domain == 2 && id == 165 ? "cudaDeviceSynchronize_v3020"
                      : domain == 2 && id == 131 ? "cudaStreamSynchronize_v3020"
                      : domain == 2 && id == 135 ? "cudaEventRecord_v3020"
                      : domain == 2 && id == 147 ? "cudaStreamWaitEvent_v3020"
                      : domain == 1 && id == 126 ? "cuStreamSynchronize"
                      : domain == 1 && id == 719 ? "cuKernelGetName"
                      : domain == 1 && id == 307 ? "cuLaunchKernel"
                      : domain == 1 && id == 513 ? "cuGraphInstantiate" : NULL;
  if (!known) snprintf(names[domain][id], 40, "call_%d_%u", domain, id);
  *name = known ? known : names[domain][id];
  return 0;
}
EXPORT int cuptiSetThreadIdType(int t) { return t == 1 ? 0 : 1; }
EXPORT int cuptiActivityRegisterTimestampCallback(Timestamp t) { g_timestamp = t; return 0; }
EXPORT int cuptiActivityRegisterCallbacks(Requested r, Completed c) {
  g_requested = r;
  g_completed = c;
  return 0;
}
EXPORT int cuptiActivityEnable(int kind) {
  if (kind == 51 && getenv("FAKE_CUPTI_OLD")) return 21;
  g_enabled[kind] = 1;
  return 0;
}
EXPORT int cuptiActivityDisable(int kind) { g_enabled[kind] = 0; return 0; }
EXPORT int cuptiActivityGetNumDroppedRecords(void* c, uint32_t s, size_t* n) {
  (void)c; (void)s;
  *n = getenv("FAKE_CUPTI_DROPS") ? 5 : 0;
  return 0;
}

static void complete(void) {
  if (!g_buffer) return;
  uint8_t* b = g_buffer;
  size_t size = g_size, valid = g_valid;
  g_buffer = NULL;
  g_completed((void*)1, 0, b, size, valid);
}
EXPORT void fake_at_end(void (*happens)(void)) { g_at_end = happens; }
EXPORT int cuptiActivityFlushAll(uint32_t flag) {
  if (flag && g_at_end) g_at_end();
  if (g_calls_after_end) { fprintf(stderr, "flush after the driver's end\n"); abort(); }
  pthread_mutex_lock(&g_lock);
  complete();
  pthread_mutex_unlock(&g_lock);
  return 0;
}

static size_t size_of(int kind) {
  int newer = version() >= 26;
  switch (kind) {
    case 10: return version() >= 100000 ? 208 : version() >= 22 ? 208 : 176;
    case 1: return newer ? 112 : 88;
    case 22: return 96;
    case 2: return 88;
    case 4: case 5: return 40;
    case 38: return newer ? 56 : 40;
    case 17: return version() >= 22 ? 56 : 40;
    case 51: return version() >= 22 ? 56 : 40;
    case 36: return newer ? 56 : 24;
    case 37: return 24;
    case 49: return 128;
  }
  abort();
}
EXPORT int cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, uint8_t** record) {
  uint8_t* next = buffer;
  if (*record) {
    int kind;
    memcpy(&kind, *record, 4);
    next = *record + size_of(kind);
  }
  if (next >= buffer + valid) return 12;
  *record = next;
  return 0;
}

static void* add(int kind) { /* with g_lock held */
  size_t size = size_of(kind);
  if (!g_enabled[kind]) return NULL;
  if (g_buffer && g_valid + size > g_size) complete();
  if (!g_buffer) {
    size_t most;
    g_requested(&g_buffer, &g_size, &most);
    g_valid = 0;
  }
  uint8_t* r = g_buffer + g_valid;
  g_valid += size;
  memset(r, 0, size);
  memcpy(r, &kind, 4);
  return r;
}
#define PUT(offset, type, value) do { type v_ = (type)(value); memcpy(r + (offset), &v_, sizeof v_); } while (0)

static uint64_t now(void) { return g_timestamp ? g_timestamp() : 1; }

static void api(int kind, uint32_t cbid, uint64_t start, uint64_t end, uint32_t correlation) {
  uint8_t* r = add(kind);
  if (!r) return;
  PUT(4, uint32_t, cbid);
  PUT(8, uint64_t, start);
  PUT(16, uint64_t, end);
  PUT(24, uint32_t, getpid());
  PUT(28, uint32_t, syscall(SYS_gettid));
  PUT(32, uint32_t, correlation);
}

/* A function of the API that tells the subscriber on entry and exit, as CUPTI lays it out. */
struct data {
  int site;
  const char* function;
  const void* arguments;
  const void* result;
  const char* symbol;
  void* context;
  uint32_t context_number;
  uint64_t* kept;
  uint32_t correlation;
};
static void told(int domain, uint32_t id, int site, const void* arguments, uint64_t* kept,
                 uint32_t correlation) {
  static int success;
  struct data data = {site, "", arguments, &success, NULL, (void*)1, 1, kept, correlation};
  if (g_callback && g_callbacks[domain][id]) g_callback(g_user, domain, id, &data);
}
EXPORT int cuptiGetStreamIdEx(void* context, uintptr_t stream, uint8_t per_thread, uint32_t* id) {
  (void)context;
  *id = stream ? (uint32_t)stream + 10 : per_thread ? 9 : 7;
  return 0;
}
static void wait_ns(uint64_t length_ns) {
  uint64_t end = g_timestamp ? g_timestamp() + length_ns : 0;
  while (g_timestamp && g_timestamp() < end) {}
}

static uint32_t next_correlation(void) {
  pthread_mutex_lock(&g_lock);
  uint32_t c = ++g_correlation;
  pthread_mutex_unlock(&g_lock);
  return c;
}

/* One launch: a call (and two dull ones) and its kernel of length_ns, 2 us later. */
EXPORT uint32_t fake_launch(const char* name, uint64_t length_ns, uint32_t device) {
  pthread_mutex_lock(&g_lock);
  uint32_t c = ++g_correlation;
  uint64_t start = now(), end = start + 1000;
  api(5, 17, start, start + 10, 0);
  api(4, 719, start, start + 10, 0);
  uint64_t kept = 0;
  told(1, 307, 0, NULL, &kept, c);
  told(1, 307, 1, NULL, &kept, c);
  told(2, 211, 0, NULL, &kept, c);
  api(5, 211, start, end, c);
  uint8_t* r = add(10);
  if (r) {
    PUT(6, uint16_t, 40);
    PUT(16, uint64_t, start + 2000);
    PUT(24, uint64_t, start + 2000 + length_ns);
    PUT(40, uint32_t, device);
    PUT(44, uint32_t, 1);
    PUT(48, uint32_t, 7);
    PUT(52, int32_t, 10); PUT(56, int32_t, 2); PUT(60, int32_t, 1);
    PUT(64, int32_t, 128); PUT(68, int32_t, 1); PUT(72, int32_t, 1);
    PUT(76, int32_t, 1024); PUT(80, int32_t, 2048); PUT(84, uint32_t, 16);
    PUT(92, uint32_t, c);
    PUT(104, const char*, name);
  }
  pthread_mutex_unlock(&g_lock);
  told(2, 211, 1, NULL, &kept, c);
  return c;
}
EXPORT void fake_graph_made(void) {
  uint64_t kept = 0;
  told(1, 513, 0, NULL, &kept, 0);
  g_graphs++;
  if (!g_enabled[51]) g_graphs_untraced++;
  told(1, 513, 1, NULL, &kept, 0);
}
EXPORT void fake_graph_launch(uint64_t length_ns) {
  if (g_finalized || (g_graphs_untraced && g_enabled[51])) { fprintf(stderr, "graph crash\n"); abort(); }
  pthread_mutex_lock(&g_lock);
  uint32_t c = ++g_correlation;
  uint64_t start = now();
  api(5, 311, start, start + 500, c);
  uint8_t* r = add(51);
  if (r) {
    PUT(4, uint32_t, c); PUT(8, uint64_t, start + 900); PUT(16, uint64_t, start + 900 + length_ns);
    PUT(28, uint32_t, 5); PUT(32, uint32_t, 1); PUT(36, uint32_t, 7);
  }
  pthread_mutex_unlock(&g_lock);
}
EXPORT int fake_is_ours(void) { return g_callback != NULL; }
EXPORT int fake_finalized(void) { return g_finalized; }
EXPORT void fake_copy(uint64_t bytes, int kind, int src, int dst, uint64_t length_ns) {
  pthread_mutex_lock(&g_lock);
  uint32_t c = ++g_correlation;
  uint64_t start = now();
  api(5, 41, start, start + 500, c);
  uint8_t* r = add(1);
  if (r) {
    PUT(4, uint8_t, kind); PUT(5, uint8_t, src); PUT(6, uint8_t, dst); PUT(7, uint8_t, 1);
    PUT(8, uint64_t, bytes);
    PUT(16, uint64_t, start + 700); PUT(24, uint64_t, start + 700 + length_ns);
    PUT(36, uint32_t, 1); PUT(40, uint32_t, 8); PUT(44, uint32_t, c);
  }
  pthread_mutex_unlock(&g_lock);
}
EXPORT void fake_copy_between(uint64_t bytes, uint32_t src, uint32_t dst) {
  pthread_mutex_lock(&g_lock);
  uint64_t start = now();
  uint8_t* r = add(22);
  if (r) {
    PUT(4, uint8_t, 10); PUT(5, uint8_t, 3); PUT(6, uint8_t, 3);
    PUT(8, uint64_t, bytes); PUT(16, uint64_t, start); PUT(24, uint64_t, start + 100);
    PUT(40, uint32_t, 9); PUT(44, uint32_t, src); PUT(52, uint32_t, dst);
    PUT(60, uint32_t, ++g_correlation);
  }
  pthread_mutex_unlock(&g_lock);
}
EXPORT void fake_set(uint64_t bytes) {
  pthread_mutex_lock(&g_lock);
  uint32_t c = ++g_correlation;
  uint64_t start = now();
  api(5, 51, start, start + 400, c);
  uint8_t* r = add(2);
  if (r) {
    PUT(8, uint64_t, bytes); PUT(16, uint64_t, start + 600); PUT(24, uint64_t, start + 900);
    PUT(36, uint32_t, 1); PUT(40, uint32_t, 7); PUT(44, uint32_t, c); PUT(50, uint16_t, 3);
  }
  pthread_mutex_unlock(&g_lock);
}
/* A runtime function that orders or waits, its driver's one beneath it, if it has one. */
static void ordering(uint32_t id, uint32_t beneath, const void* arguments, uint64_t length_ns) {
  uint64_t kept = 0, kept_beneath = 0;
  uint32_t c = next_correlation();
  told(2, id, 0, arguments, &kept, c);
  uint64_t start = now();
  if (beneath) told(1, beneath, 0, arguments, &kept_beneath, c + 1000);
  wait_ns(length_ns);
  if (beneath) told(1, beneath, 1, arguments, &kept_beneath, c + 1000);
  pthread_mutex_lock(&g_lock);
  api(5, id, start, now(), c);
  pthread_mutex_unlock(&g_lock);
  told(2, id, 1, arguments, &kept, c);
}
EXPORT void fake_sync(uint64_t length_ns) { ordering(165, 0, NULL, length_ns); }
EXPORT void fake_stream_sync(uint64_t stream, uint64_t length_ns) {
  ordering(131, 126, &stream, length_ns);
}
EXPORT void fake_driver_sync(uint64_t stream) { /* called by the program itself */
  uint64_t kept = 0;
  uint32_t c = next_correlation();
  told(1, 126, 0, &stream, &kept, c);
  told(1, 126, 1, &stream, &kept, c);
}
EXPORT void fake_record(uint64_t event, uint64_t stream) {
  uint64_t arguments[2] = {event, stream};
  ordering(135, 0, arguments, 0);
}
EXPORT void fake_stream_wait(uint64_t stream, uint64_t event) {
  uint64_t arguments[2] = {stream, event};
  ordering(147, 0, arguments, 0);
}
/* A launch by the driver's interface, with a getter beside it. */
EXPORT void fake_driver_launch(void) {
  uint64_t kept = 0;
  uint32_t c = next_correlation();
  told(1, 307, 0, NULL, &kept, c);
  told(1, 719, 0, NULL, &kept, c);
  told(1, 719, 1, NULL, &kept, c);
  told(1, 307, 1, NULL, &kept, c);
  pthread_mutex_lock(&g_lock);
  api(4, 307, now(), now(), c);
  pthread_mutex_unlock(&g_lock);
}
EXPORT void fake_rest(void) { /* one of every other kind */
  pthread_mutex_lock(&g_lock);
  uint64_t start = now();
  uint8_t* r = add(17);
  if (r) {
    PUT(4, uint32_t, 1 << 16); PUT(8, uint32_t, 2); PUT(12, uint32_t, getpid());
    PUT(16, uint32_t, syscall(SYS_gettid)); PUT(24, uint64_t, start); PUT(32, uint64_t, start + 50);
  }
  r = add(51);
  if (r) {
    PUT(4, uint32_t, ++g_correlation); PUT(8, uint64_t, start); PUT(16, uint64_t, start + 60);
    PUT(28, uint32_t, 5); PUT(32, uint32_t, 1); PUT(36, uint32_t, 7);
  }
  r = add(37);
  if (r) { PUT(4, uint32_t, 1); PUT(8, uint32_t, 7); PUT(12, uint32_t, -5); PUT(16, uint32_t, 2); }
  r = add(49);
  if (r) {
    PUT(4, uint32_t, 1); PUT(8, uint32_t, 3); PUT(16, uint64_t, 0x7f0000000000ull);
    PUT(24, uint64_t, 4096); PUT(32, uint64_t, start);
  }
  pthread_mutex_unlock(&g_lock);
}

/* The driver's side: cuInit loads the tool; profiler calls and context events reach the subscriber. */
EXPORT int fake_init(void) {
  extern void* dlopen(const char*, int);
  extern void* dlsym(void*, const char*);
  const char* path = getenv("CUDA_INJECTION64_PATH");
  if (!path) return 0;
  void* tool = dlopen(path, 1);
  int (*begin)(void) = tool ? (int (*)(void))dlsym(tool, "InitializeInjection") : NULL;
  return begin ? begin() : 0;
}
static void tell(int domain, uint32_t id, int site) {
  int data[32] = {site};
  if (g_callback && g_callbacks[domain][id]) g_callback(g_user, domain, id, data);
}
EXPORT void fake_profiler(int start) {
  tell(2, start ? 171 : 172, 0);
  tell(1, start ? 308 : 309, 0);
  tell(1, start ? 308 : 309, 1);
  tell(2, start ? 171 : 172, 1);
}
static void driver_ends(void) { g_calls_after_end = 1; }
EXPORT void fake_context(void) { /* as a native program: the driver's exit handler comes late */
  atexit(driver_ends);
  tell(3, 1, 0);
}
EXPORT int fake_enabled(int kind) { return g_enabled[kind]; }
