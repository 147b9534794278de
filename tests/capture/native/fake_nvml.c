/* A stand-in for libnvidia-ml.so.1: two GPUs, of which the second has no GPM and no fan of counters.
 * Values count up with every sample, so that a test can tell means over a period from states. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { NOT_SUPPORTED = 3 };
static int g_devices[2];
static uint64_t g_throttle;

EXPORT int nvmlInit_v2(void) { return 0; }
EXPORT const char* nvmlErrorString(int r) { return r == NOT_SUPPORTED ? "Not Supported" : "Error"; }
EXPORT int nvmlSystemGetDriverVersion(char* text, unsigned room) {
  snprintf(text, room, "580.1");
  return 0;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* v) { *v = 13000; return 0; }
EXPORT int nvmlDeviceGetCount_v2(unsigned* n) { *n = 2; return 0; }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** h) { *h = &g_devices[i]; return 0; }
EXPORT int nvmlDeviceGetName(void* h, char* text, unsigned room) {
  (void)h;
  snprintf(text, room, "Fake GPU");
  return 0;
}
EXPORT int nvmlDeviceGetUUID(void* h, char* text, unsigned room) {
  snprintf(text, room, "GPU-%d", h == &g_devices[1]);
  return 0;
}
EXPORT int nvmlDeviceGetClockInfo(void* h, int kind, unsigned* v) {
  if (h == &g_devices[1]) return NOT_SUPPORTED;
  *v = kind == 1 ? 1980 : 3201;
  return 0;
}
EXPORT int nvmlDeviceGetPowerUsage(void* h, unsigned* v) { (void)h; *v = 512000; return 0; }
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void* h, uint64_t* v) {
  if (h == &g_devices[1]) return NOT_SUPPORTED;
  *v = g_throttle++ % 2 ? 0x4 | 0x40 : 0x1; /* power cap and heat; idle */
  return 0;
}

/* GPM: a sample holds the number of samples taken so far. */
typedef struct { uint32_t version, supported; } Support;
typedef struct {
  uint32_t id, result;
  double value;
  const char *short_, *long_, *unit;
} Metric;
typedef struct {
  uint32_t version, count;
  int *before, *after;
  Metric metrics[];
} Request;
static int g_samples, g_alive;

EXPORT int nvmlGpmQueryDeviceSupport(void* h, Support* s) {
  if (s->version != 1) return 2;
  s->supported = h == &g_devices[0] && !getenv("FAKE_NO_GPM");
  return 0;
}
EXPORT int nvmlGpmSampleAlloc(int** s) { *s = calloc(1, sizeof(int)); g_alive++; return 0; }
EXPORT int nvmlGpmSampleFree(int* s) { free(s); g_alive--; return 0; }
EXPORT int nvmlGpmSampleGet(void* h, int* s) {
  (void)h;
  *s = ++g_samples;
  return g_samples == 4 ? 999 : 0; /* one fails */
}
EXPORT int nvmlGpmMetricsGet(Request* r) {
  if (r->version != 1) return 2;
  for (uint32_t i = 0; i < r->count; i++) {
    Metric* m = &r->metrics[i];
    m->result = m->id == 11 ? NOT_SUPPORTED : 0;
    m->value = m->id == 12 ? 0.0 / 0.0 : m->id == 60 ? 2.0 : *r->after - *r->before + m->id / 100.0;
  }
  return 0;
}
EXPORT int fake_alive(void) { return g_alive; }
