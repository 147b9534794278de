/* A program's copy of NVTX: loads the tool as NVTX's headers do, and gives a test its functions. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

typedef void (*Function)(void);
static Function core[16], core2[16];
static Function* core_table[17];
static Function* core2_table[17];
static intptr_t payload_slots[63];

static int get_table(int module, Function*** table, unsigned* size) {
  if (module == 1) { *table = core_table; *size = 16; return 1; }
  if (module == 5) { *table = core2_table; *size = 16; return 1; }
  return 0;
}
static struct { size_t size; int (*get)(int, Function***, unsigned*); } callbacks = {16, get_table};
static const void* get_export(uint32_t id) { return id == 1 ? &callbacks : NULL; }

#define EXPORT __attribute__((visibility("default")))
EXPORT int nvtx_load(void) {
  const char* path = getenv("NVTX_INJECTION64_PATH");
  for (int i = 0; i < 16; i++) { core_table[i] = &core[i]; core2_table[i] = &core2[i]; }
  void* tool = path ? dlopen(path, RTLD_LAZY) : NULL;
  int (*begin)(const void* (*)(uint32_t)) =
      tool ? (int (*)(const void* (*)(uint32_t)))dlsym(tool, "InitializeInjectionNvtx2") : NULL;
  if (!begin || !begin(get_export)) return 0;
  struct { size_t id, count; intptr_t* slots; } segment = {0, 63, payload_slots};
  struct { uint16_t version, size, module, compat; size_t count; void* segments; void* e; void* i; }
      module = {3, 48, 2, 0x0104, 1, &segment, NULL, NULL};
  int (*extend)(void*) = (int (*)(void*))dlsym(tool, "InitializeInjectionNvtxExtension");
  if (extend) extend(&module);
  return 1;
}
typedef struct {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  union { uint64_t u; double d; } payload;
  int32_t message_type;
  const void* message;
} Event;

EXPORT int push(const char* m) { return core[9] ? ((int (*)(const char*))core[9])(m) : -1; }
EXPORT int push_wide(const wchar_t* m) { return ((int (*)(const wchar_t*))core[10])(m); }
EXPORT int pop(void) { return core[11] ? ((int (*)(void))core[11])() : -1; }
EXPORT void mark(const char* m) { ((void (*)(const char*))core[2])(m); }
EXPORT uint64_t range_start(const char* m) { return ((uint64_t(*)(const char*))core[5])(m); }
EXPORT void range_end(uint64_t id) { ((void (*)(uint64_t))core[7])(id); }
EXPORT void name_thread(uint32_t t, const char* m) { ((void (*)(uint32_t, const char*))core[14])(t, m); }
EXPORT void* domain(const char* m) { return ((void* (*)(const char*))core2[12])(m); }
EXPORT void* registered(void* d, const char* m) { return ((void* (*)(void*, const char*))core2[10])(d, m); }
EXPORT void name_category(void* d, uint32_t c, const char* m) {
  ((void (*)(void*, uint32_t, const char*))core2[8])(d, c, m);
}
EXPORT int domain_push(void* d, void* string, uint32_t category, double payload) {
  Event e = {3, sizeof(Event), category, 1, 0xFF00FF00, 3, 0, {.d = payload}, 3, string};
  return ((int (*)(void*, const Event*))core2[4])(d, &e);
}
EXPORT int domain_pop(void* d) { return ((int (*)(void*))core2[5])(d); }
EXPORT uint64_t domain_start(void* d, const char* m) {
  Event e = {3, sizeof(Event), 0, 0, 0, 0, 0, {0}, 1, m};
  return ((uint64_t(*)(void*, const Event*))core2[2])(d, &e);
}
EXPORT void domain_end(void* d, uint64_t id) { ((void (*)(void*, uint64_t))core2[3])(d, id); }

typedef struct { uint64_t flags, type; const char *name, *description; uint64_t detail, offset; const void *s, *r; } Entry;
typedef struct { uint64_t mask; const char* name; uint64_t type, flags; const Entry* entries; size_t count, size, align; uint64_t id; void* ext; } Schema;
typedef struct { uint64_t schema; size_t size; const void* data; } Data;
typedef struct { uint64_t comm; uint32_t op; int32_t root; double scale; } Collective;
static const Entry entries[] = {{0, 18, "comm", 0, 0, 0, 0, 0}, {0, 16, "op", 0, 0, 8, 0, 0},
                                {0, 15, "root", 0, 0, 12, 0, 0}, {0, 20, "scale", 0, 0, 16, 0, 0}};
EXPORT uint64_t schema(void* d) {
  Schema s = {0x1fe, "collective", 1, 0, entries, 4, sizeof(Collective), 0, 16777300, NULL};
  return ((uint64_t(*)(void*, const Schema*))payload_slots[0])(d, &s);
}
EXPORT int collective_push(void* d, uint64_t schema_id, const char* m, uint64_t comm, int root) {
  static Collective c;
  c = (Collective){comm, 2, root, 0.5};
  static Data data;
  data = (Data){schema_id, sizeof c, &c};
  Event e = {3, sizeof(Event), 0, 0, 0, (int32_t)0xDFBD0009, 1, {.u = (uint64_t)(uintptr_t)&data}, 1, m};
  return ((int (*)(void*, const Event*))core2[4])(d, &e);
}

/* A thread of the program that is still at work while the capture ends. */
static int g_ready, g_go, g_gone; /* atomic */
static void await(int* it) {
  while (!__atomic_load_n(it, __ATOMIC_ACQUIRE)) usleep(100);
}
static void* work_late(void* unused) {
  (void)unused;
  push("before");
  pop();
  __atomic_store_n(&g_ready, 1, __ATOMIC_RELEASE);
  await(&g_go);
  usleep(100);
  push("late");
  pop();
  mark("late mark");
  range_end(range_start("late range"));
  __atomic_store_n(&g_gone, 1, __ATOMIC_RELEASE);
  return NULL;
}
EXPORT void late_begin(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, work_late, NULL)) abort();
  await(&g_ready);
}
EXPORT void late_go(void) {
  __atomic_store_n(&g_go, 1, __ATOMIC_RELEASE);
  await(&g_gone);
}
