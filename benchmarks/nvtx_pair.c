/* Measures an NVTX push and pop in ns, and the clock read that no recorder can do without. The
 * stand-in of NVTX (fake_nvtx.c) is linked in and, as NVTX does, costs a test of a pointer. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int nvtx_load(void);
int push(const char*);
int pop(void);
void* domain(const char*);
void* registered(void*, const char*);
int domain_push(void*, void*, uint32_t, double);
int domain_pop(void*);

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int count, char** arguments) {
  int pairs = count > 1 ? atoi(arguments[1]) : 100000, rounds = 40;
  int heard = nvtx_load();
  double plain = 1e18, named = 1e18, clock = 1e18;
  void* d = heard ? domain("library") : NULL;
  void* name = heard ? registered(d, "step") : NULL;
  for (int round = 0; round < rounds; round++) {
    struct timespec pause = {0, 20000000}; /* the writer thread catches up, as in a real program */
    double begin = now();
    for (int i = 0; i < pairs; i++) { push("forward"); pop(); }
    double took = (now() - begin) / pairs;
    if (took < plain) plain = took;
    nanosleep(&pause, NULL);
    if (heard) {
      begin = now();
      for (int i = 0; i < pairs; i++) { domain_push(d, name, 0, 0.0); domain_pop(d); }
      took = (now() - begin) / pairs;
      if (took < named) named = took;
      nanosleep(&pause, NULL);
    }
    struct timespec t;
    begin = now();
    for (int i = 0; i < pairs; i++) clock_gettime(CLOCK_MONOTONIC, &t);
    took = (now() - begin) / pairs;
    if (took < clock) clock = took;
  }
  printf("%.1f %.1f %.1f\n", plain, heard ? named : 0.0, clock);
  return 0;
}
