// Included before everything else: binds functions to the oldest versions that the C library still
// has of them. The newer versions only moved between its files, so a library that is built today
// loads on every system since glibc 2.17 (2012), and its wheel may say so.
#pragma once
#include <features.h>

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#if defined(__x86_64__)
#define STEPSCOPE_SINCE(name, x86_64) __asm__(".symver " #name "," #name "@GLIBC_" x86_64);
#else
#define STEPSCOPE_SINCE(name, x86_64) __asm__(".symver " #name "," #name "@GLIBC_2.17");
#endif

STEPSCOPE_SINCE(dladdr, "2.2.5")
STEPSCOPE_SINCE(dlopen, "2.2.5")
STEPSCOPE_SINCE(dlsym, "2.2.5")
STEPSCOPE_SINCE(dlvsym, "2.2.5")
#ifndef STEPSCOPE_WAITS  // which has functions of these names itself
STEPSCOPE_SINCE(pthread_create, "2.2.5")
STEPSCOPE_SINCE(pthread_detach, "2.2.5")
STEPSCOPE_SINCE(pthread_key_create, "2.2.5")
STEPSCOPE_SINCE(pthread_once, "2.2.5")
STEPSCOPE_SINCE(pthread_setname_np, "2.12")
STEPSCOPE_SINCE(pthread_setspecific, "2.2.5")
STEPSCOPE_SINCE(pthread_sigmask, "2.2.5")
STEPSCOPE_SINCE(sem_init, "2.2.5")
STEPSCOPE_SINCE(sem_post, "2.2.5")
STEPSCOPE_SINCE(sem_timedwait, "2.2.5")
#endif
#endif
