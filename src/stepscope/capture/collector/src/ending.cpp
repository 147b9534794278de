// Ends that neither exit handlers nor SIGTERM's handler see.
#include <errno.h>
#include <signal.h>

#include "process.h"

namespace stepscope {
namespace {

// Ctrl+C and a terminal that is closed end a program at once where it left the default.
constexpr int kSignals[] = {SIGINT, SIGHUP};
constexpr const char* kNames[] = {"SIGINT", "SIGHUP"};
constexpr int kLimitMs = 1000;
struct sigaction g_old[2];

void on_signal(int number) {
  int error = errno;
  int which = number == SIGINT ? 0 : 1;
  finish(kNames[which], kLimitMs);
  sigaction(number, &g_old[which], nullptr);
  errno = error;
  raise(number);  // delivered when this handler returns: the program ends as it would have
}

// When CUDA or NVTX load the library; a program's own handlers, Python's among them, stay.
__attribute__((constructor)) void watch_signals() {
  if (!config().valid) return;
  for (int i = 0; i < 2; i++) {
    struct sigaction now;
    if (sigaction(kSignals[i], nullptr, &now) || (now.sa_flags & SA_SIGINFO) ||
        now.sa_handler != SIG_DFL)
      continue;
    struct sigaction ours {};
    ours.sa_handler = on_signal;
    ours.sa_flags = SA_RESTART;
    sigemptyset(&ours.sa_mask);
    sigaction(kSignals[i], &ours, &g_old[i]);
  }
}

}  // namespace
}  // namespace stepscope

// For the hook: Python ends by SIGINT at its default after an interrupt that nobody caught.
STEPSCOPE_EXPORT void stepscope_finish(const char* how) {
  static char kept[32];
  snprintf(kept, sizeof kept, "%s", how);
  stepscope::finish(kept, 5000);
}
